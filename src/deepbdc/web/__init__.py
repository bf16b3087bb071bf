"""What every web server of this package needs: who may use it, what it refuses, and how it listens."""
