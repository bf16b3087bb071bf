"""The web page of ``deepbdc app``: a person shows a few pictures of each class, and has others recognised."""
