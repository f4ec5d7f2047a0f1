"""The sweep of `make operators`: a log and its proof for every operator of torch's own database."""
