"""The HTML report of a run or of a comparison.

`learning`, `experts`, `quality`, `specialisation` and `comparison` compute what figures show, as
plain numbers; `findings` puts it into words; `plots*` draw and compute nothing; `page` makes
the document from templates/, where its words and markup stand. Nothing here imports Lightning.
"""
