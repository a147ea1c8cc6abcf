"""Load on a server, and what each request saw of it.

`client` runs SGLang's own load client inside an engine's interpreter and writes records;
`records` reads them; `definitions` turns them into figures; `workload` says what is sent;
`point` measures one experiment at one concurrency level.
"""
