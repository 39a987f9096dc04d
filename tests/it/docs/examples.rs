//! Examples in the configuration reference, for keys whose default is not a good example. `configuration` checks each.

pub const EXAMPLES: &str = r#"
server.listen = ["0.0.0.0:8080", "[::1]:8081"]
server.admin_listen = "127.0.0.1:9090"
server.admin_token = { env = "TOLLGATE_ADMIN_TOKEN" }
server.admin_write_token = { file = "/run/secrets/admin-write" }
server.admin_hosts = ["gateway.internal"]
server.record_requests = true
server.tls = { cert = "cert.pem", key = "key.pem" }
server.cors_origins = ["https://app.example.com"]
server.reuse_port = true
server.max_connections_per_ip = 200
server.drain_lead = "10s"
server.memory = "64MiB"
server.trusted_proxies = ["10.0.0.0/8", "192.0.2.7"]
server.proxy_protocol = true
server.log = 0.1
server.attribution = "plain"
store.url = ["rediss://:", { env = "REDIS_PASSWORD" }, "@cache.example:6379/0"]
store.ca_file = "redis-ca.pem"
store.durability = "before-reply"
store.on_outage = "local"
store.hosts = 3
store.replicas = 1
store.retention = "400d"
store.spill = "/var/lib/tollgate/spill"
store.snapshot = { to = "/backup/tollgate.db", every = "30m" }
telemetry.otlp = "http://127.0.0.1:4318"
telemetry.headers = { x-tenant = "ops", authorization = { env = "OTLP_AUTHORIZATION" } }
telemetry.ca_file = "collector-ca.pem"
telemetry.sample = 0.1
alerts.url = "https://hooks.example.com/services/T0/B0/XXXX"
alerts.budget = [50, 80, 100]
alerts.form = "slack"
alerts.ca_file = "webhook-ca.pem"
vendors.name = "mine"
vendors.host = ["llm.example.com", "*.llm.example.com"]
vendors.model = "mistral-*"
vendors.shape = "chat"
vendors.near = true
vendors.source = "https://llm.example.com/docs/errors"
vendors.date = 2026-11-29
vendors.telemetry = "mine"
vendors.litellm = "openai"
vendors.models_dev = "openai"
vendors.env = ["LLM_API_KEY"]
vendors.base_url = "https://llm.example.com/v1"
vendors.port = 8000
vendors.title = "Our server"
vendors.auth = "api-key"
vendors.unlisted = true
vendors.stream_usage = false
vendors.refuses = ["user"]
vendors.never_together = [["temperature", "top_p"]]
vendors.user_after_tool = false
vendors.call_id_length = 9
providers.vendor = "vllm"
providers.api_key = { env = "OPENAI_API_KEY" }
providers.api_keys = [{ env = "KEY_A" }, { env = "KEY_B", weight = 2 }]
providers.auth = "api-key"
providers.headers = { x-title = "tollgate" }
providers.betas = ["context-1m-2025-08-07"]
providers.ca_file = "provider-ca.pem"
providers.addresses = ["192.0.2.10", "192.0.2.11:8443"]
providers.proxy = "http://proxy.example:3128"
providers.unknown_fields = "forward"
providers.cost = "provider"
providers.limits = ["requests=500/1m", { budget = 400, per = "month", models = ["gpt-*"] }]
providers.stored_objects = true
providers.discover = { every = "10m", prefix = "local/" }
providers.discover.prefix = "local/"
models.aliases = ["gpt-4o-mini", "claude-*"]
models.name = "Small"
models.owned_by = "openai"
models.created = 2026-03-17
models.input_price = 0.75
models.output_price = 4.5
models.cache_read_price = 0.075
models.cache_write_price = 0.9375
models.cache_write_1h_price = 1.5
models.price_per_request = 0.002
models.price_per_image = 0.04
models.price_per_minute = 0.006
models.serves = ["chat", "embeddings"]
models.targets = [{ provider = "openai", model = "gpt-5.4-mini" }]
models.affinity = "key"
models.balance = "least_busy"
models.queue = { max = 32, wait = "30s" }
models.drop_params = ["logit_bias"]
models.set_params = { temperature = 0.2 }
models.default_params = { reasoning_effort = "low" }
models.hosted_tools = ["web_search"]
models.capabilities = { strict_tools = true }
models.targets.model = "gpt-5.4-mini"
models.targets.priority = 1
models.targets.weight = 3
models.targets.concurrency = 4
models.targets.context = "128K"
models.targets.limits = ["requests=500/1m"]
models.targets.input_price = 0.75
models.targets.output_price = 4.5
models.targets.cache_read_price = 0.075
models.targets.cache_write_price = 0.9375
models.targets.cache_write_1h_price = 1.5
models.targets.price_per_request = 0.002
models.targets.price_per_image = 0.04
models.targets.price_per_minute = 0.006
models.capabilities.replay_reasoning = true
models.capabilities.verbosity = true
models.capabilities.strict_tools = true
models.capabilities.max_image_tokens = 1600
models.capabilities.mid_conversation_system = true
models.capabilities.structured_output = "tool"
models.capabilities.thinking = "adaptive"
models.capabilities.cache = "marks"
models.capabilities.sampling = false
models.capabilities.max_completion_tokens = true
models.capabilities.developer_role = true
models.capabilities.effort = true
models.capabilities.thought_signatures = true
models.capabilities.effort_with_tools = false
models.capabilities.max_output_tokens = 32000
plans.tokens = "10M"
plans.period = "week"
plans.requests = 600
plans.tokens_per_window = "250K"
plans.concurrency = 8
plans.budget = 50.0
plans.limits = [{ requests = 600, per = "1m" }, { budget = 5.0, per = "5h", models = ["opus-*"] }]
plans.unpriced = "allow"
plans.on_exhausted = { model = "small" }
plans.share = 4
groups.parent = "company"
groups.tokens = "100M"
groups.period = "week"
groups.requests = 6_000
groups.tokens_per_window = "2M"
groups.concurrency = 64
groups.budget = 500.0
groups.limits = ["budget=50/day", "tokens=10M/5h:opus-*"]
groups.unpriced = "allow"
groups.on_exhausted = { model = "small" }
"#;
