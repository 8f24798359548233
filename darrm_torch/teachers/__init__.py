"""The only rooms that know Opacus; Torch starts here."""
