//! The manuals, kept next to the code and checked by `tests/it/docs/` where they repeat what the code says. No code.

#[doc = include_str!("api.md")]
pub mod api {
    #[doc = include_str!("api/chat.md")]
    pub mod chat {}

    #[doc = include_str!("api/messages.md")]
    pub mod messages {}

    #[doc = include_str!("api/models.md")]
    pub mod models {}

    #[doc = include_str!("api/relayed.md")]
    pub mod relayed {}

    #[doc = include_str!("api/responses.md")]
    pub mod responses {}

    #[doc = include_str!("api/translated-responses.md")]
    pub mod translated_responses {}

    #[doc = include_str!("api/translation.md")]
    pub mod translation {}
}

#[doc = include_str!("configuration.md")]
pub mod configuration {
    #[doc = include_str!("configuration/alerts.md")]
    pub mod alerts {}

    #[doc = include_str!("configuration/capabilities.md")]
    pub mod capabilities {}

    #[doc = include_str!("configuration/groups.md")]
    pub mod groups {}

    #[doc = include_str!("configuration/models.md")]
    pub mod models {}

    #[doc = include_str!("configuration/plans.md")]
    pub mod plans {}

    #[doc = include_str!("configuration/providers.md")]
    pub mod providers {}

    #[doc = include_str!("configuration/server.md")]
    pub mod server {}

    #[doc = include_str!("configuration/store.md")]
    pub mod store {}

    #[doc = include_str!("configuration/telemetry.md")]
    pub mod telemetry {}

    #[doc = include_str!("configuration/upstream.md")]
    pub mod upstream {}
}

#[doc = include_str!("money.md")]
pub mod money {}

#[doc = include_str!("targets.md")]
pub mod targets {}

#[doc = include_str!("agents.md")]
pub mod agents {}

#[doc = include_str!("editors.md")]
pub mod editors {}

#[doc = include_str!("compare.md")]
pub mod compare {}

#[doc = include_str!("litellm.md")]
pub mod litellm {}

#[doc = include_str!("threats.md")]
pub mod threats {}

#[doc = include_str!("promises.md")]
pub mod promises {}

#[doc = include_str!("past.md")]
pub mod past {}

#[doc = include_str!("cost.md")]
pub mod cost {}

#[doc = include_str!("testing.md")]
pub mod testing {}

/// Lessons: from nothing to a result.
pub mod tutorial {
    #[doc = include_str!("tutorial/claude-code-local.md")]
    pub mod claude_code_local {}

    #[doc = include_str!("tutorial/first-gateway.md")]
    pub mod first_gateway {}

    #[doc = include_str!("tutorial/from-litellm.md")]
    pub mod from_litellm {}

    #[doc = include_str!("tutorial/life-of-a-key.md")]
    pub mod life_of_a_key {}

    #[doc = include_str!("tutorial/team-of-five.md")]
    pub mod team_of_five {}
}

/// Tasks: one goal for each page.
pub mod how_to {
    #[doc = include_str!("how-to/air-gapped.md")]
    pub mod air_gapped {}

    #[doc = include_str!("how-to/alerts.md")]
    pub mod alerts {}

    #[doc = include_str!("how-to/backup.md")]
    pub mod backup {}

    #[doc = include_str!("how-to/behind-a-proxy.md")]
    pub mod behind_a_proxy {}

    #[doc = include_str!("how-to/capture.md")]
    pub mod capture {}

    #[doc = include_str!("how-to/clock.md")]
    pub mod clock {}

    #[doc = include_str!("how-to/compose.md")]
    pub mod compose {}

    #[doc = include_str!("how-to/docker.md")]
    pub mod docker {}

    #[doc = include_str!("how-to/drain.md")]
    pub mod drain {}

    #[doc = include_str!("how-to/failover.md")]
    pub mod failover {}

    #[doc = include_str!("how-to/keys.md")]
    pub mod keys {}

    #[doc = include_str!("how-to/kubernetes.md")]
    pub mod kubernetes {}

    #[doc = include_str!("how-to/openwrt.md")]
    pub mod openwrt {}

    #[doc = include_str!("how-to/prometheus.md")]
    pub mod prometheus {}

    #[doc = include_str!("how-to/provider-credentials.md")]
    pub mod provider_credentials {}

    #[doc = include_str!("how-to/public-endpoint.md")]
    pub mod public_endpoint {}

    #[doc = include_str!("how-to/raspberry-pi.md")]
    pub mod raspberry_pi {}

    #[doc = include_str!("how-to/redis-cluster.md")]
    pub mod redis_cluster {}

    #[doc = include_str!("how-to/reload.md")]
    pub mod reload {}

    #[doc = include_str!("how-to/rotate-keys.md")]
    pub mod rotate_keys {}

    #[doc = include_str!("how-to/several-hosts.md")]
    pub mod several_hosts {}

    #[doc = include_str!("how-to/systemd.md")]
    pub mod systemd {}

    #[doc = include_str!("how-to/tls.md")]
    pub mod tls {}

    #[doc = include_str!("how-to/troubleshooting.md")]
    pub mod troubleshooting {}

    #[doc = include_str!("how-to/upgrade.md")]
    pub mod upgrade {}

    #[doc = include_str!("how-to/usage-reports.md")]
    pub mod usage_reports {}

    #[doc = include_str!("how-to/webhook-alerts.md")]
    pub mod webhook_alerts {}
}

/// Facts: names, fields, columns and codes.
pub mod reference {
    #[doc = include_str!("reference/admin-api.md")]
    pub mod admin_api {}

    #[doc = include_str!("reference/health.md")]
    pub mod health {}

    #[doc = include_str!("reference/causes.md")]
    pub mod causes {}

    #[doc = include_str!("reference/cli.md")]
    pub mod cli {}

    #[doc = include_str!("reference/conformance.md")]
    pub mod conformance {}

    #[doc = include_str!("reference/errors.md")]
    pub mod errors {}

    #[doc = include_str!("reference/exit-codes.md")]
    pub mod exit_codes {}

    #[doc = include_str!("reference/glossary.md")]
    pub mod glossary {}

    #[doc = include_str!("reference/ledger.md")]
    pub mod ledger {}

    #[doc = include_str!("reference/log.md")]
    pub mod log {}

    #[doc = include_str!("reference/metrics.md")]
    pub mod metrics {}

    #[doc = include_str!("reference/platforms.md")]
    pub mod platforms {}

    #[doc = include_str!("reference/simulator.md")]
    pub mod simulator {}

    #[doc = include_str!("reference/traces.md")]
    pub mod traces {}
}

/// Reasons: how Tollgate works, and its bounds.
pub mod explanation {
    #[doc = include_str!("explanation/architecture.md")]
    pub mod architecture {}
    #[doc = include_str!("explanation/cheaper-model.md")]
    pub mod cheaper_model {}

    #[doc = include_str!("explanation/faq.md")]
    pub mod faq {}

    #[doc = include_str!("explanation/memory.md")]
    pub mod memory {}

    #[doc = include_str!("explanation/queue.md")]
    pub mod queue {}

    #[doc = include_str!("explanation/reservations.md")]
    pub mod reservations {}

    #[doc = include_str!("explanation/routing.md")]
    pub mod routing {}

    #[doc = include_str!("explanation/shared-ledger.md")]
    pub mod shared_ledger {}

    #[doc = include_str!("explanation/strict-limits.md")]
    pub mod strict_limits {}
}
