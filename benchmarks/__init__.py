"""Speed against a hand-written loop, against the machine's limit, and of whole rounds over MPI; see README.md."""
