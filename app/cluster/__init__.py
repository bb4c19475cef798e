"""The devices of a Ray cluster, each as a device of this service: Ray places one actor a node and carries its calls."""
