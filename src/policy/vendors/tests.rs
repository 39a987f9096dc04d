use super::*;
use crate::policy::config::{Config, effective};
use crate::policy::vendors::capabilities::PromptCache;
use crate::wire::Shape;
use row::VendorRow;

fn parse(text: &str) -> Result<Config, Vec<String>> {
    let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let source = Source { file: "t", text, env: &|_| None, read: &read, run: &Source::no_program };
    Config::parse(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn config(shape: &str, base_url: &str, model: &str, more: &str, capabilities: &str) -> String {
    format!(
        "[[providers]]\nname = \"p\"\nshape = \"{shape}\"\nbase_url = \"{base_url}\"\n{more}\n[[models]]\nid = \"m\"\n\
         context = \"1K\"\n{capabilities}\ntargets = [{{ provider = \"p\", model = \"{model}\" }}]\n"
    )
}

fn capabilities(shape: &str, base_url: &str, model: &str) -> Capabilities {
    let config = parse(&config(shape, base_url, model, "", "")).unwrap();
    config.catalog.models()[0].targets[0].rules.capabilities
}

#[test]
fn every_built_in_row_is_valid_and_names_its_source() {
    let text = built_in();
    let count = text.matches("[[vendors]]\n").count();
    let vendors = Vendors::built_in();
    assert_eq!(vendors.rows.len(), count);
    for (row, text) in vendors.rows.iter().zip(text.split("[[vendors]]\n").skip(1)) {
        assert!(row.is_sourced(), "{text}");
        let none = VendorRow::default();
        assert!((&row.identity, &row.rules) != (&none.identity, &none.rules), "{text}");
    }
}

#[test]
fn the_first_row_that_matches_decides_each_property() {
    let openai = "https://api.openai.com/v1";
    for (shape, base_url, model, want) in [
        ("chat", openai, "gpt-5.4-mini", [Some(false), Some(true), Some(true)]),
        ("chat", openai, "gpt-5-chat-latest", [Some(true), Some(false), Some(true)]),
        ("responses", openai, "gpt-4.1", [None, Some(false), Some(true)]),
        ("chat", "https://me.openai.azure.com/openai/v1", "o3-mini", [Some(false), Some(true), Some(true)]),
        ("chat", "https://api.mistral.ai/v1", "gpt-5", [None, None, None]),
        ("messages", "https://api.anthropic.com", "claude-opus-4-7", [Some(false), Some(true), None]),
        ("chat", "https://openrouter.ai/api/v1", "anthropic/claude-opus-4.7", [Some(false), Some(true), None]),
    ] {
        let found = capabilities(shape, base_url, model);
        assert_eq!([found.sampling, found.effort, found.max_completion_tokens], want, "{base_url} {model}");
    }
}

#[test]
fn own_settings_come_before_own_rows_and_those_before_the_built_in_ones() {
    let rows = "[[vendors]]\nhost = \"api.openai.com\"\nmodel = [\"gpt-*\"]\neffort = false\nsampling = true\n\
                cache = \"key\"\nsource = \"mine\"\n";
    let own = config("chat", "https://api.openai.com/v1", "gpt-5.4", "", "capabilities = { effort = true }");
    let config = parse(&format!("{rows}{own}")).unwrap();
    let model = &config.catalog.models()[0];
    let found = model.targets[0].rules.capabilities;
    assert_eq!((found.effort, found.sampling, found.developer_role), (Some(true), Some(true), Some(true)));
    assert_eq!((found.cache, model.caches_by_key), (Some(PromptCache::Key), true));
    let provider = &config.providers[0];
    let all = config.vendors.explain(&provider.place(), "gpt-5.4", &model.capabilities);
    let of = |name: &str| all.iter().find(|one| one.name == name).map(|one| (&*one.value, &*one.origin)).unwrap();
    assert_eq!(of("effort"), ("true", "the model's `capabilities`"));
    assert_eq!(of("sampling"), ("true", "[[vendors]] row 1: mine"));
    assert!(of("developer_role").1.starts_with("built in, row "), "{}", of("developer_role").1);
    assert_eq!(of("verbosity"), ("false", "default of the format"));
    let page = effective(&config);
    assert_eq!(effective(&parse(&page).unwrap()), page);
    assert!(page.contains("sampling = true\n"), "{page}");
}

#[test]
fn models_from_gemini_3_on_require_signatures() {
    let base_url = "https://generativelanguage.googleapis.com/v1beta/openai";
    let requires = |model: &str| capabilities("chat", base_url, model).thought_signatures == Some(true);
    for model in
        ["gemini-3-pro-preview", "gemini-3.1-flash-lite", "google/gemini-3.8-flash", "gemini-4-argon", "gemini-10-x"]
    {
        assert!(requires(model), "{model}");
    }
    for model in [
        "gemini-2.5-pro",
        "google/gemini-2.0-flash",
        "gemini-3-pro-image",
        "gemini-3-pro-image-preview",
        "gemini-pro",
        "gemini-30b-it",
        "my-gemini-3",
        "gpt-5.4",
        "gemini-",
    ] {
        assert!(!requires(model), "{model}");
    }
}

#[test]
fn a_provider_may_name_its_vendor() {
    let near = "http://127.0.0.1:8000/v1";
    let of = |vendor: &str| {
        let text = config("chat", near, "m", &format!("vendor = \"{vendor}\""), "");
        parse(&text).map(|config| config.providers[0].stream_usage)
    };
    assert_eq!((of("mistral"), of("openai")), (Ok(false), Ok(true)));
    let errors = of("mistrall").unwrap_err();
    assert!(errors[0].contains("providers[0].vendor: expected the name of a vendor: anthropic, "), "{errors:?}");
    let text = config("chat", "https://api.mistral.ai/v1", "m", "stream_usage = true", "");
    assert!(parse(&text).unwrap().providers[0].stream_usage, "a provider's own setting comes first");
}

#[test]
fn mistakes_in_rows_are_errors_that_name_the_place() {
    let good = config("chat", "http://127.0.0.1/v1", "m", "", "");
    for (row, want) in [
        ("refusez = []", "t:2: vendors[0].refusez: unknown key; did you mean `refuses`?"),
        ("model = \"a[\"", "t:2: vendors[0].model: expected a pattern such as"),
        ("host = [\"\"]", "t:2: vendors[0].host[0]: expected a pattern such as"),
        ("shape = \"soap\"", "t:2: vendors[0].shape: expected the name of an API format"),
        ("effort = 1", "t:2: vendors[0].effort: expected true or false"),
        ("host = []", "t:2: vendors[0].host: expected 1 to 64 entries"),
        ("refuses = [\"max_tokens\"]", "t:2: vendors[0].refuses: `max_tokens` cannot be refused here"),
        ("never_together = [[\"a\", \"b\"]]", "t:2: vendors[0].never_together: expected a pair of temperature"),
        ("model = \"m\"\nport = 80", "t:1: vendors[0].model: a property of a vendor as a whole belongs"),
    ] {
        let errors = parse(&format!("[[vendors]]\n{row}\n{good}")).unwrap_err();
        assert!(errors.len() == 1 && errors[0].starts_with(want), "{row}: {errors:?}");
    }
}

#[test]
fn rows_of_other_vendors_are_not_kept() {
    let config = parse(&config("chat", "https://api.mistral.ai/v1", "m", "", "")).unwrap();
    let all = Vendors::built_in().rows.len();
    assert!(config.vendors.rows.len() < all / 2, "{} of {all}", config.vendors.rows.len());
    assert_eq!(config.vendors.of_host("API.mistral.ai."), Some("mistral"));
    assert_eq!(config.providers[0].place().shape, Shape::Chat);
}
