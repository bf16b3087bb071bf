"""Training: recipes, the three stages, runs that survive, and the devices they run on."""
