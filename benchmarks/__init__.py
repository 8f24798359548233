"""Speed: ``python -m benchmarks [names] [--small] [--check] [--json FILE]``; see README.md here."""
