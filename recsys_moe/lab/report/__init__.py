"""The HTML report of a run or of a comparison.

`learning`, `experts`, `quality`, `specialisation` and `comparison` compute what figures show, as
plain numbers; `findings` puts it into words; `plots*` draw and compute nothing; `page` writes the
document. Nothing here imports Lightning.
"""
