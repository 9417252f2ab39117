"""Features of users, of items and of single rows (the context).

Until the split is known, columns `feature:NAME` hold values as they were read: text, lists of text
or float64. Then the training rows and their entities give the vocabulary or the scale of each, and
the columns hold indices or standardised numbers.
"""
