"""Source rows → token shards with exact loss masks, plan and report."""
