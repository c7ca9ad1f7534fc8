"""How a stage makes its input from the outputs of its sources: the processors that come with podium."""
