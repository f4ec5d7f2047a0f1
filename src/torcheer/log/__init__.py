"""The data of a run: records of operations, modules, states and backward passes; the layers, labels and keys made of them."""
