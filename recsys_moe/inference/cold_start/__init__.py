"""Users and items that training has not seen."""
