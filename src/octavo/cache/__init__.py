"""KV pages, page tables and the radix prefix tree."""
