"""The tables and figures of the paper: what they compare, the runs behind them, and how they are written."""
