"""HongKongOSMs: one learning vehicle among ten IDM vehicles in each of ten traffic networks. Paper: Sec. 5.1."""
