"""Who may do what: API keys, client certificates and Unix users as principals, their quotas, and the audit log."""
