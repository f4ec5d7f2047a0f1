"""What autograd does with the tensors that are seen: gradients, and the nodes of its graph."""
