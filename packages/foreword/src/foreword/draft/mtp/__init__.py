"""Multi-token prediction: the layers in a checkpoint that predict tokens further on."""
