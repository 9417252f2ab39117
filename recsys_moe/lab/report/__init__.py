"""The HTML report of a run or of a comparison.

`run`, `learning`, `experts`, `quality`, `genres` and `comparison` compute what figures
show, as plain numbers; `findings` says what is out of the ordinary; `plots*` draw and compute
nothing; `*_report` put figures and findings into sections; `page` makes the document from
templates/, where its words and markup stand. Nothing here imports Lightning.
"""
