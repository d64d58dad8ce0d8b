"""An echo app: what a round trip costs when the ClientApp does nothing."""
