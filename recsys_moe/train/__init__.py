"""Lightning: fit, module, loader, callbacks, checkpoints, resume."""
