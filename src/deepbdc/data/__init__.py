"""Data sets, their splits, and how images are brought to a network.

Nothing is imported here, so that the command line can speak of data sets without loading torch.
"""
