//! Compares the alert rules and the dashboard with the metrics that the gateway exposes, and checks them with
//! Prometheus' own tool.

use super::pages::{anchors, root};
use super::rig::{Rig, chat, connect, get, read_to_end};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

const ALERTS: &str = include_str!("../../../scripts/examples/alerts.yml");
const DASHBOARD: &str = include_str!("../../../scripts/examples/grafana.json");
const METRICS: &str = include_str!("../../../src/docs/reference/metrics.md");

/// Returns the output of `/metrics` after a request, a refusal and a failure.
fn metrics() -> String {
    let rig = Rig::new("watching", "");
    let gone = "[[models]]\nid = \"gone\"\ncontext = \"1M\"\ntargets = [{ provider = \"gone\" }]\nqueue = {}\n\
                [[providers]]\nname = \"gone\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:1/v1\"\n\
                [[groups]]\nname = \"research\"\nbudget = 50\n";
    rig.configure("", &(rig.models("small") + gone), "");
    let gate = rig.start();
    for (model, stream) in [("small", true), ("small", false), ("gone", false)] {
        gate.ask(&chat(&rig.key, model, stream, "one").replacen("host: h", "connection: close\r\nhost: h", 1));
    }
    gate.ask(&get(&rig.key, "/v1/nothing"));
    let mut stream = connect(gate.admin);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    read_to_end(&mut stream).split_once("\r\n\r\n").unwrap().1.to_string()
}

/// Returns the names of series with their labels.
fn series(metrics: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::<String, BTreeSet<String>>::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap().to_string();
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.rsplit_once('}').unwrap().0);
        let names = labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name.to_string());
        all.entry(name).or_default().extend(names);
    }
    all
}

/// Returns the rules by name, each with its expression and the rest of its text.
fn rules() -> Vec<(String, String)> {
    let rules = ALERTS.split("- alert: ").skip(1).map(|rule| rule.split_once('\n').unwrap());
    let expression = |rest: &str| {
        let (_, rest) = rest.split_once("expr: ").unwrap();
        let ends = ["\n        for:", "\n        labels:"];
        let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap();
        rest[..end].replace(">-\n", "").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    rules.map(|(name, rest)| (name.to_string(), expression(rest))).collect()
}

/// Returns summary, description and runbook of a rule, with their quotes.
fn annotations(rule: &str) -> [String; 3] {
    let (_, rest) = ALERTS.split_once(&format!("- alert: {rule}\n")).unwrap();
    let rest = rest.split("- alert: ").next().unwrap();
    ["summary", "description", "runbook_url"].map(|name| {
        let (_, value) = rest.split_once(&format!("          {name}: ")).unwrap_or_else(|| panic!("{rule}: no {name}"));
        value.lines().next().unwrap().to_owned()
    })
}

#[test]
fn every_alert_names_its_instance_and_a_heading_of_the_manual() {
    for (rule, query) in rules() {
        let [summary, description, runbook] = annotations(&rule);
        assert!(summary.starts_with("\"Tollgate {{ $labels.instance }}: "), "{rule}: {summary}");
        let loses = query.contains(" by (") && !query.contains("by (instance");
        assert!(!loses && !query.contains("sum("), "{rule} has no instance: {query}");
        assert!(description.len() > 40 && description.ends_with(".\""), "{rule}: {description}");
        let (_, path) = runbook.trim_matches('"').split_once("/blob/main/").unwrap_or_else(|| panic!("{runbook}"));
        let (page, heading) = path.split_once('#').unwrap();
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        assert!(anchors(&text).iter().any(|anchor| anchor == heading), "{rule}: {runbook}");
    }
}

fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).unwrap()
}

/// Returns the queries of all panels, by the title of the panel.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let of = |panel: &Value| -> Vec<(String, String)> {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap().to_string();
        targets.iter().map(|target| (text(&panel["title"]), text(&target["expr"]))).collect()
    };
    panels.flat_map(of).collect()
}

/// Returns the metrics in a query, each with the labels that it selects.
fn asked(query: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in query.match_indices("tollgate_").chain(query.match_indices("process_")) {
        // A match inside quotes, or after other letters, is not a metric name.
        if query[..at].ends_with(is_name) || query[..at].matches('"').count() % 2 == 1 {
            continue;
        }
        let rest = &query[at..];
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        let labels =
            rest[end..].strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let names = labels.split(',').filter_map(|label| label.split(['=', '!']).next());
        found.push((rest[..end].to_string(), names.filter(|name| !name.is_empty()).map(String::from).collect()));
    }
    found
}

/// Returns the labels that a query groups by.
fn grouped(query: &str) -> BTreeSet<String> {
    let lists = query.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
    lists.flat_map(|list| list.split(',')).map(|name| name.trim().to_string()).collect()
}

#[test]
fn every_query_uses_exposed_metrics_and_labels() {
    let series = series(&metrics());
    // Labels that Prometheus itself adds to every series.
    let added = ["instance", "job", "le"];
    let mut used = BTreeSet::new();
    let all = rules().into_iter().chain(queries(&dashboard()));
    for (title, query) in all {
        let asked = asked(&query);
        assert!(!asked.is_empty(), "{title}: {query}");
        let mut known: BTreeSet<&str> = added.into();
        for (name, labels) in &asked {
            let has = series.get(name).unwrap_or_else(|| panic!("{title}: {name} is not exposed"));
            known.extend(has.iter().map(String::as_str));
            for label in labels {
                assert!(has.contains(label) || added.contains(&&**label), "{title}: {name} has no label {label}");
            }
            used.insert(name.trim_end_matches("_bucket").to_string());
        }
        for label in grouped(&query) {
            assert!(known.contains(&*label), "{title}: no series has the label {label}");
        }
    }
    // Every exposed metric must be used.
    let plain = |name: &String| ["_sum", "_count", "_bucket"].iter().fold(name.clone(), |n, end| n.replace(end, ""));
    let exposed: BTreeSet<String> = series.keys().map(plain).collect();
    let unseen: Vec<&String> = exposed.iter().filter(|name| !used.contains(*name)).collect();
    assert!(unseen.is_empty(), "no rule and no panel uses {unseen:?}");
}

#[test]
fn metrics_page_names_the_rule_of_each_metric() {
    let (_, table) = METRICS.split_once("| metric | meaning | look when |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let mut named = BTreeSet::new();
    for row in table.lines().skip(1) {
        let cells: Vec<&str> = row.split('|').collect();
        for name in cells[3].split('`').filter(|word| word.starts_with("Tollgate")) {
            let (_, query) =
                rules().into_iter().find(|(rule, _)| rule == name).unwrap_or_else(|| panic!("no rule {name}"));
            let metrics: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
            let is_here = |metric: &&str| query.contains(metric.split('{').next().unwrap());
            assert!(metrics.iter().any(is_here), "{name} does not use {metrics:?}");
            named.insert(name.to_string());
        }
    }
    let all: BTreeSet<String> = rules().into_iter().map(|(name, _)| name).collect();
    assert_eq!(named, all);
}

#[test]
fn dashboard_is_valid_for_grafana() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36) && dashboard["uid"] == "tollgate");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<&str> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "duplicate id: {}", panel["title"]);
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap());
        assert!(x + w <= 24, "{}", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(places.insert(cell), "{} overlaps another panel", panel["title"]);
        }
        if panel["type"] != "row" {
            assert!(
                panel["fieldConfig"]["defaults"]["unit"].is_string() && panel["datasource"]["uid"] == "${datasource}"
            );
        }
        let shows = panel["type"].as_str().unwrap();
        assert!(["row", "stat", "timeseries"].contains(&shows), "{}: {shows}", panel["title"]);
        let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
        let letters: BTreeSet<&str> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(letters.len(), targets.len(), "{}: duplicate letter", panel["title"]);
        for target in targets {
            let datasource = (&target["datasource"]["type"], &target["datasource"]["uid"]);
            assert_eq!(datasource, (&"prometheus".into(), &"${datasource}".into()), "{}", panel["title"]);
        }
    }
    let instances = variables[1]["query"]["query"].as_str().unwrap();
    assert_eq!(asked(instances)[0].0, "tollgate_build_info", "{instances}");
    for (title, query) in queries(&dashboard) {
        for variable in query.split('$').skip(1) {
            let name: String = variable.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            assert!(names.contains(&&*name) || name == "__rate_interval" || name == "__range", "{title}: ${name}");
        }
    }
}

fn promtool(args: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool (apt: prometheus)");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn prometheus_accepts_rules_queries_and_metrics() {
    let folder = std::env::temp_dir().join(format!("tollgate-watching-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    std::fs::write(path("alerts.yml"), ALERTS).unwrap();
    promtool(&["check", "rules", &path("alerts.yml")], "");
    let mut recorded = String::from("groups:\n  - name: panels\n    rules:\n");
    for (number, (_, query)) in queries(&dashboard()).iter().enumerate() {
        let query = query.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$instance", ".*");
        recorded += &format!("      - record: panel_{number}\n        expr: {}\n", Value::from(query));
    }
    std::fs::write(path("panels.yml"), recorded).unwrap();
    promtool(&["check", "rules", &path("panels.yml")], "");
    promtool(&["check", "metrics"], &metrics());
    let mut tested = RULES_TESTED.to_string();
    for (mark, rule, says) in [
        ("{refused}", "TollgateCredentialRefused", "up/m returned 401: credential, bill or model"),
        ("{fails}", "TollgateTargetFails", "33.41% of attempts at up/m fail"),
        ("{stay}", "TollgateReservationsStay", "3 reservations are open although no requests arrive"),
    ] {
        let [_, description, runbook] = annotations(rule);
        let all = format!("summary: 'Tollgate a: {says}', description: {description}, runbook_url: {runbook}");
        tested = tested.replace(mark, &format!("exp_annotations: {{ {all} }}"));
    }
    std::fs::write(path("test.yml"), tested).unwrap();
    promtool(&["test", "rules", &path("test.yml")], "");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Tests of the rules: one that must fire, and a day without any problem.
const RULES_TESTED: &str = r#"
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - { series: 'tollgate_upstream_responses_total{instance="a", target="up/m", status="200"}', values: '0+600x60' }
      - { series: 'tollgate_upstream_responses_total{instance="a", target="up/m", status="401"}', values: '0x30 1+1x30' }
      - { series: 'tollgate_upstream_responses_total{instance="a", target="up/m", status="timeout"}', values: '0x30 0+300x30' }
      - { series: 'tollgate_requests_total{instance="b", endpoint="chat", model="m", status="200"}', values: '0+600x60' }
      - { series: 'tollgate_open_reservations{instance="a"}', values: '3x60' }
    alert_rule_test:
      - { eval_time: 29m, alertname: TollgateCredentialRefused, exp_alerts: [] }
      - { eval_time: 29m, alertname: TollgateTargetFails, exp_alerts: [] }
      - { eval_time: 45m, alertname: TollgateServerErrors, exp_alerts: [] }
      - eval_time: 45m
        alertname: TollgateCredentialRefused
        exp_alerts:
          - exp_labels: { severity: critical, instance: a, target: up/m, status: "401" }
            {refused}
      - eval_time: 45m
        alertname: TollgateTargetFails
        exp_alerts:
          - exp_labels: { severity: warning, instance: a, target: up/m }
            {fails}
      - eval_time: 45m
        alertname: TollgateReservationsStay
        exp_alerts:
          - exp_labels: { severity: warning, instance: a }
            {stay}
"#;
