"""`make mutants`: puts one small fault at a time into the code, and asks whether a test fails.

A *mutant* is a copy of the sources with one expression or statement changed. A mutant is *noticed* when a test fails or
runs far too long, and *survives* otherwise. A survivor is a line that no test holds, unless the change makes no difference:
those are listed with the reason in `equivalent.json`.
"""
