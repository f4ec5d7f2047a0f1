"""`make contact-sheet`: every picture of the product that a person should look at before a release, on one page."""
