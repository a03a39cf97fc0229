"""Within one host, from one device allocation to another: peers open each other's."""
