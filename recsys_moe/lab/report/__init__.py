"""The HTML report of a run or of a comparison.

`run`, `learning`, `experts`, `quality`, `genres` and `comparison` compute the data of the figures;
`findings` has the rules for warnings and notes; `plots*` draw; `*_report` build the sections;
`page` renders templates/, which have the texts. Nothing here imports Lightning.
"""
