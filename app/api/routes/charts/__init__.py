"""What charts are drawn from: one module an aggregate."""
