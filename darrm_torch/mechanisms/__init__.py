"""Mechanisms: counts of votes in, private labels out, under one small protocol (:class:`~darrm_torch.Mechanism`)."""
