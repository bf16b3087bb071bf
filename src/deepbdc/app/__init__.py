"""The web page of ``deepbdc app``: a person adds a few pictures per class, and other pictures are classified."""
