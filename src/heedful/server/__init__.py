"""What both servers stand on: who may ask, how answers are written, how a port is bound."""
