"""Training: the loop over stages, checkpoints, runs that survive an interruption, and the devices they run on."""
