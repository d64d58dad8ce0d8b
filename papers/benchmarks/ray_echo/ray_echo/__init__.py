"""An echo app, which measures a round trip when the ClientApp computes nothing."""
