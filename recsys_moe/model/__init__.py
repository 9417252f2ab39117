"""What is computed: the mixture-of-experts layer, the network around it, losses."""
