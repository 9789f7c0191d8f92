"""Tables, figures and a report, made from run folders alone."""
