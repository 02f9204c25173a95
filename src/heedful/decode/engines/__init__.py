"""Fast steppers behind the `Stepper` protocol: machine code on a CPU, a recorded graph on a GPU."""
