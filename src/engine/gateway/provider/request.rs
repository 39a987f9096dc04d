//! The request as it is sent upstream: a head rendered when the configuration is loaded, and a body made of pieces of
//! the client's own bytes and inserted text, so that a large body is never copied as a whole.

use super::upload::Upload;
use crate::base::buf::{BLOCK, Buf, Charge, Pool};
use crate::base::text::push_number;
use crate::dialect::{
    self, Cache, CacheKey, Capabilities, Invalid, Param, RequestRules, RequestScan, RewritePiece, Structured, Thinking,
    TranslationState, UnknownMembers,
};
use crate::gateway::memory::Memory;
use crate::gateway::memory::shares::Promise;
use crate::policy::catalog::{Model, ModelParam, Target};
use crate::policy::config::{Config, Credential, Provider, UnknownFields};
use crate::policy::vendors::capabilities::{ModelThinking, PromptCache, StructuredOutput};
use crate::wire::head::{HeaderField, RequestHead, field_lines, is_anthropic, is_hop_by_hop, values};
use crate::wire::{ModelEndpoint, Shape, Span};
use std::ops::Range;
use std::sync::Arc;

/// The API version sent to a provider with the messages format if the client sends none.
const ANTHROPIC_VERSION: &[u8] = b"2023-06-01";

/// The end of the head of a request with JSON.
const JSON_HEAD_END: &[u8] = b"content-type: application/json\r\naccept-encoding: identity\r\ncontent-length: ";

/// Headers of Anthropic's API that are written one by one.
const WRITTEN: [&str; 2] = ["anthropic-version", "anthropic-beta"];

/// Parts of the names of betas that belong to members on the deny list: skills (`container`) and `mcp_servers`. A
/// provider refuses a beta that needs a member, or a member without its beta.
const DENIED_BETAS: [&[u8]; 2] = [b"skills-", b"mcp-client-"];

/// Data that is computed once per configuration for all outgoing requests.
#[derive(Debug)]
pub(crate) struct RequestTemplates {
    /// By provider.
    templates: Vec<Template>,
    /// Capabilities of each target, by model: its targets, followed by those for pass-through endpoints.
    capabilities: Vec<Vec<Capabilities>>,
}

impl RequestTemplates {
    /// Templates for all providers and targets of `config`.
    pub(crate) fn new(config: &Config) -> RequestTemplates {
        let of_model = |model: &Model| {
            let params = params(model);
            let all = model.targets.iter().chain(&model.passthrough_targets);
            all.map(|target| capabilities(config, model, target, &params)).collect()
        };
        RequestTemplates {
            templates: config.providers.iter().map(Template::new).collect(),
            capabilities: config.catalog.models().iter().map(of_model).collect(),
        }
    }

    /// Template of the request head for a provider.
    pub(crate) fn template(&self, provider: usize) -> Option<&Template> {
        self.templates.get(provider)
    }

    /// Capabilities of one target of a model. Targets for pass-through endpoints are numbered after the last target.
    pub(crate) fn capabilities(&self, model: usize, target: usize) -> Option<&Capabilities> {
        self.capabilities.get(model)?.get(target)
    }
}

/// Parameters of a model that overwrite the client's, and defaults for those that the client does not set.
fn params(model: &Model) -> Arc<[Param]> {
    let of = |list: &[ModelParam], always| -> Vec<Param> {
        list.iter().map(|param| Param { name: param.name.clone(), json: param.json.clone(), always }).collect()
    };
    [of(&model.set_params, true), of(&model.default_params, false)].concat().into()
}

fn capabilities(config: &Config, model: &Model, target: &Target, params: &Arc<[Param]>) -> Capabilities {
    let (known, provider) = (&target.rules.capabilities, config.provider(target.provider));
    let takes_effort = provider.is_some_and(|provider| provider.shape.takes_effort());
    Capabilities {
        sampling: known.sampling.unwrap_or(true),
        mid_conversation_system: known.mid_conversation_system,
        replay_reasoning: known.replay_reasoning.unwrap_or_default(),
        max_completion_tokens: known.max_completion_tokens.unwrap_or_default(),
        developer_role: known.developer_role.unwrap_or_default(),
        max_output_tokens: known.max_output_tokens,
        structured_output: match known.structured_output.unwrap_or_default() {
            StructuredOutput::Native => Structured::Native,
            StructuredOutput::Tool => Structured::Tool,
            StructuredOutput::Instruction => Structured::Instruction,
        },
        effort: known.effort.unwrap_or(takes_effort),
        effort_with_tools: known.effort_with_tools.unwrap_or(true),
        strict_tools: known.strict_tools.unwrap_or_default(),
        default_max_tokens: model.default_max_tokens,
        drop_params: model.drop_params.clone(),
        stream_usage: provider.is_none_or(|provider| provider.stream_usage),
        unknown: match provider.map(|provider| (provider.unknown_fields, provider.is_near())) {
            Some((UnknownFields::Forward, _)) => UnknownMembers::Forward,
            Some((UnknownFields::Auto, _)) if provider.is_some_and(|provider| provider.shape.is_anthropic()) => {
                UnknownMembers::New
            }
            Some((UnknownFields::Auto, true)) => UnknownMembers::Local,
            _ => UnknownMembers::Drop,
        },
        thinking: match known.thinking.unwrap_or_default() {
            ModelThinking::Unset => Thinking::Unset,
            ModelThinking::Adaptive => Thinking::Adaptive,
            ModelThinking::Budget => Thinking::Budget,
        },
        cache: match known.cache.unwrap_or_default() {
            PromptCache::Unset => Cache::Unset,
            PromptCache::Marks => Cache::Marks,
            PromptCache::Key => Cache::Key,
        },
        verbosity: known.verbosity.unwrap_or_default(),
        thought_signatures: known.thought_signatures.unwrap_or_default(),
        hosted_tools: model.hosted_tools.clone(),
        stored_objects: provider.is_some_and(|provider| provider.stored_objects),
        rules: rules(&target.rules.requests),
        mark: dialect::neutral::carrier::mark(provider.map_or("", |provider| &provider.name), &target.model),
        params: params.clone(),
    }
}

fn rules(known: &policy::vendors::RequestRules) -> Arc<RequestRules> {
    Arc::new(RequestRules {
        refuses: known.refuses.clone(),
        never_together: known.never_together.clone(),
        user_after_tool: known.user_after_tool.unwrap_or(true),
        call_id_length: known.call_id_length.unwrap_or_default().into(),
    })
}

/// The unchanging part of every request head to one provider, up to and with `content-length: `.
#[derive(Debug)]
pub(crate) struct Template {
    /// By credential; one entry if there is none.
    heads: Vec<Vec<u8>>,
    /// Place of the API's path in the heads; a pass-through request has another one.
    path: Range<usize>,
    shape: Shape,
    /// True if the configuration sets the API version for a provider with the messages format.
    has_version: bool,
    betas: Option<Vec<String>>,
    /// Names of the headers that the configuration sets.
    configured: Vec<String>,
}

impl Template {
    fn new(provider: &Provider) -> Template {
        let says = |header: &str| provider.headers.iter().any(|(name, _)| name == header);
        let heads = match &provider.credentials[..] {
            [] => vec![Template::head(provider, None)],
            several => several.iter().map(|one| Template::head(provider, Some(one))).collect(),
        };
        let end = "POST ".len() + provider.path.len();
        let path = end.saturating_sub(provider.shape.path_below().len())..end;
        Template {
            heads,
            path,
            shape: provider.shape,
            has_version: says("anthropic-version"),
            betas: provider.betas.clone(),
            configured: provider.headers.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    fn head(provider: &Provider, credential: Option<&Credential>) -> Vec<u8> {
        let mut head = Vec::with_capacity(512);
        line(&mut head, &[b"POST ", provider.path.as_bytes(), b" HTTP/1.1"]);
        line(&mut head, &[b"host: ", provider.host_header.as_bytes()]);
        if let Some((name, value)) = credential.map(|credential| provider.header_of(credential)) {
            line(&mut head, &[name.as_bytes(), b": ", value.as_bytes()]);
        }
        for (name, value) in &provider.headers {
            line(&mut head, &[name.as_bytes(), b": ", value.as_bytes()]);
        }
        // A header that the configuration sets replaces the default one.
        let says = |header: &str| provider.headers.iter().any(|(name, _)| name == header);
        if !says("user-agent") {
            line(&mut head, &[b"user-agent: tollgate/", env!("CARGO_PKG_VERSION").as_bytes()]);
        }
        head.extend_from_slice(JSON_HEAD_END);
        head
    }

    /// Writes the head for a body of `length` bytes, with the credential of `target`. A request to a `passthrough`
    /// endpoint has its path. `client`: head and bytes of the client's request in the same format, whose Anthropic
    /// headers are passed on; `None` for a translated request, whose headers belong to another API.
    pub(crate) fn write(
        &self,
        target: &Target,
        length: u64,
        passthrough: Option<ModelEndpoint>,
        client: Option<(&RequestHead, &[u8])>,
        out: &mut Vec<u8>,
    ) {
        let mut head = self.heads.get(target.credential).map_or(&[][..], |head| head);
        if let Some(endpoint) = passthrough {
            out.extend_from_slice(head.get(..self.path.start).unwrap_or_default());
            out.extend_from_slice(endpoint.path_below().as_bytes());
            head = head.get(self.path.end..).unwrap_or_default();
        }
        out.extend_from_slice(head);
        push_number(out, length);
        if self.shape.is_anthropic() {
            out.extend_from_slice(b"\r\n");
            let field = |name| client.map_or(&b""[..], |(head, bytes)| head.field(name).of(bytes));
            if !self.has_version {
                let version = field(HeaderField::AnthropicVersion);
                let version = if version.is_empty() { ANTHROPIC_VERSION } else { version };
                line(out, &[b"anthropic-version: ", version]);
            }
            // An empty line may come before others, and has a place in the head all the same.
            if let Some((_, bytes)) =
                client.filter(|(head, _)| head.field(HeaderField::AnthropicBeta) != Span::default())
            {
                self.write_betas(bytes, out);
            }
            if let Some((_, bytes)) = client.filter(|(head, _)| head.more_anthropic) {
                self.write_others(bytes, out);
            }
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(b"\r\n\r\n");
        }
    }

    /// Writes the head for a form with this boundary. `length`: `None` if the form is sent in chunks.
    pub(crate) fn write_form(
        &self,
        target: &Target,
        endpoint: ModelEndpoint,
        boundary: &[u8],
        length: Option<u64>,
        out: &mut Vec<u8>,
    ) {
        let head = self.heads.get(target.credential).map_or(&[][..], |head| head);
        out.extend_from_slice(head.get(..self.path.start).unwrap_or_default());
        out.extend_from_slice(endpoint.path_below().as_bytes());
        let end = head.len().saturating_sub(JSON_HEAD_END.len());
        out.extend_from_slice(head.get(self.path.end..end).unwrap_or_default());
        let is_word = boundary.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+'".contains(byte));
        let quote: &[u8] = if is_word { b"" } else { b"\"" };
        line(out, &[b"content-type: multipart/form-data; boundary=", quote, boundary, quote]);
        line(out, &[b"accept-encoding: identity"]);
        match length {
            Some(length) => {
                out.extend_from_slice(b"content-length: ");
                push_number(out, length);
                out.extend_from_slice(b"\r\n\r\n");
            }
            None => out.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n"),
        }
    }

    /// Writes the client's other headers of Anthropic's API as they are, except those that the configuration sets or
    /// that are for this hop only.
    #[cold]
    fn write_others(&self, client_head: &[u8], out: &mut Vec<u8>) {
        let fields = field_lines(client_head).filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            Some((&line[..colon], line[colon + 1..].trim_ascii()))
        });
        for (name, value) in fields.filter(|(name, _)| is_anthropic(name)) {
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            let skips = WRITTEN.iter().any(|known| is(known))
                || self.configured.iter().any(|known| is(known))
                || is_hop_by_hop(client_head, name);
            if !skips {
                line(out, &[name, b": ", value]);
            }
        }
    }

    /// Writes the header with the allowed values. It is a list and may be repeated (RFC 9110 section 5.3).
    fn write_betas(&self, client_head: &[u8], out: &mut Vec<u8>) {
        let allowed = |name: &[u8]| match &self.betas {
            Some(list) => list.iter().any(|known| known.as_bytes() == name),
            None => !DENIED_BETAS
                .iter()
                .any(|denied| name.windows(denied.len()).any(|part| part.eq_ignore_ascii_case(denied))),
        };
        let mut first = true;
        let names = values(client_head, "anthropic-beta").flat_map(|value| value.split(|byte| *byte == b','));
        for name in names.map(<[u8]>::trim_ascii).filter(|name| !name.is_empty()) {
            if allowed(name) {
                out.extend_from_slice(if first { b"anthropic-beta: " } else { b"," });
                out.extend_from_slice(name);
                first = false;
            }
        }
        if !first {
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[inline]
fn line(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

/// The state of a request that is needed until its answer is committed: the scan of its body and the outgoing body.
/// Spare ones are reused, so that an exchange in its steady state allocates nothing.
#[derive(Debug)]
pub(crate) struct OutgoingRequest {
    /// The client's head, as spans into its message.
    pub(crate) head: RequestHead,
    /// The scan of the client's body.
    pub(crate) scan: RequestScan,
    /// Inserted text between the pieces, or a translated body: all of it counts as buffered.
    pub(crate) text: Buf,
    /// The outgoing body.
    pub(crate) pieces: Vec<RewritePiece>,
    /// Memory of the body's scan and of the translation state.
    beside: Charge,
    /// State of the request's translation that the answer's translation needs; `None` if nothing is translated.
    pub(crate) state: Option<TranslationState>,
    /// Affinity hash; 0 for none.
    pub(crate) kept_with: u64,
    /// Key under which a provider's prompt cache may find the conversation.
    pub(crate) cache_key: Option<CacheKey>,
    /// Memory reserved for the client's body.
    pub(crate) promise: Promise,
    /// Memory reserved for a complete answer and its translation.
    pub(crate) answer: Promise,
    /// Length of the outgoing body in bytes.
    pub(crate) length: u64,
    /// A form that is passed on while it arrives.
    pub(crate) upload: Option<Box<Upload>>,
    next: usize,
    offset: usize,
}

impl Default for OutgoingRequest {
    fn default() -> OutgoingRequest {
        OutgoingRequest {
            head: RequestHead::unparsed(),
            scan: RequestScan::default(),
            text: Buf::default(),
            pieces: Vec::with_capacity(8), // of an ordinary request
            beside: Charge::default(),
            state: None,
            kept_with: 0,
            cache_key: None,
            promise: Promise::default(),
            answer: Promise::default(),
            length: 0,
            upload: None,
            next: 0,
            offset: 0,
        }
    }
}

impl OutgoingRequest {
    /// Forgets the outgoing body, before another attempt builds it again.
    #[inline]
    pub(crate) fn rewind(&mut self, pool: &mut Pool) {
        self.text.release(pool);
        self.pieces.clear();
        if self.state.take().is_some() {
            self.charge(pool);
        }
        (self.length, self.upload) = (0, None);
        self.restart();
    }

    /// Lays out the form that arrives for `with`. `body`: its bytes so far.
    pub(crate) fn lay_out_form(&mut self, body: &[u8], with: &dialect::RequestTarget<'_>) -> Result<(), Invalid> {
        if let Some(form) = self.scan.form() {
            self.upload = Some(Box::new(Upload::new(form, self.scan.fields(), with, &self.head, body)?));
        }
        Ok(())
    }

    /// Updates the memory charged for the body's scan and the translation state.
    #[inline]
    pub(crate) fn charge(&mut self, pool: &mut Pool) {
        let names = self.state.as_ref().map_or(0, TranslationState::storage);
        self.beside.set(pool, self.scan.storage() + names);
    }

    /// Bytes of storage that count as lent.
    pub(crate) fn storage(&self) -> usize {
        self.text.capacity() + self.beside.bytes()
    }

    /// Returns all storage.
    #[inline]
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        self.rewind(pool);
        if self.beside.bytes() > 0 || self.scan.storage() > 0 {
            self.beside.set(pool, 0);
            // A request with thousands of members must not occupy memory permanently.
            (self.scan, self.pieces) = Default::default();
        }
    }

    /// Bytes of storage for the translation of a body of `length` bytes.
    pub(crate) fn room_for(length: usize) -> usize {
        length + length / 16 + BLOCK
    }

    /// Makes the outgoing body by translating `body`, a scanned request of format `from`.
    #[inline]
    pub(crate) fn translate(
        &mut self,
        from: Shape,
        body: &[u8],
        target: &dialect::RequestTarget<'_>,
        pool: &mut Pool,
    ) -> Result<(), Invalid> {
        self.make_room(body.len(), pool);
        let scan = &self.scan;
        let state = self.text.edit(pool, |out| dialect::translate(from, body, scan, target, out))?;
        if self.text.capacity() > OutgoingRequest::room_for(body.len()) {
            // The translation is unusually long, and its storage is up to twice as large.
            self.text.shrink(pool);
        }
        self.state = Some(state);
        self.charge(pool);
        self.pieces.push(RewritePiece::Text(Span::new(0, self.text.len())));
        self.length = self.text.len() as u64;
        Ok(())
    }

    /// Takes storage for the translation of a body of `length` bytes, which is of about the same size.
    pub(crate) fn make_room(&mut self, length: usize, pool: &mut Pool) {
        if self.text.capacity() < length {
            self.text.reserve(pool, length + length / 16);
        }
    }

    /// Takes storage for the longest possible translation of `body`, so that it is never copied as it grows. Pages that
    /// are not written take no memory. For a helper thread: it reads the whole body.
    pub(crate) fn make_most_room(&mut self, body: &[u8], pool: &mut Pool) {
        let most = dialect::most_text(body, self.scan.fields());
        if self.text.capacity() < most {
            self.text.reserve(pool, most);
        }
    }

    /// Returns to the first byte of the outgoing body, for another connection to the same target.
    pub(crate) fn restart(&mut self) {
        self.next = 0;
        self.offset = 0;
    }

    /// True if the whole outgoing body has been taken.
    pub(crate) fn is_written(&self) -> bool {
        self.next >= self.pieces.len() && self.upload.as_ref().is_none_or(|upload| upload.is_written)
    }

    /// Appends up to `room` bytes of the outgoing body to `out`. `body` is the client's body. True when it is complete.
    pub(crate) fn write_some(&mut self, body: &[u8], mut room: usize, out: &mut Vec<u8>) -> bool {
        if let Some(upload) = &mut self.upload {
            return upload.write_some(body, self.scan.form().is_some_and(|form| form.is_complete), room, out);
        }
        while let Some(piece) = self.pieces.get(self.next) {
            let bytes = match *piece {
                RewritePiece::Body(span) => rest(span, body, self.offset),
                RewritePiece::Text(span) => rest(span, self.text.bytes(), self.offset),
            };
            let count = bytes.len().min(room);
            out.extend_from_slice(&bytes[..count]);
            room -= count;
            if count < bytes.len() {
                self.offset += count;
                return false;
            }
            self.next += 1;
            self.offset = 0;
        }
        true
    }
}

fn rest(span: Span, source: &[u8], offset: usize) -> &[u8] {
    span.of(source).get(offset..).unwrap_or_default()
}

/// Maximum number of spares kept for reuse.
const SPARE_MAX: usize = 256;

/// Unused requests, kept for reuse.
#[derive(Debug, Default)]
pub(crate) struct OutgoingRequests {
    // Boxed as an exchange holds them: moving one moves a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<OutgoingRequest>>,
}

impl OutgoingRequests {
    /// Returns an unused request.
    pub(crate) fn take(&mut self) -> Box<OutgoingRequest> {
        self.spare.pop().unwrap_or_default()
    }

    /// Deallocates everything kept for reuse.
    pub(crate) fn trim(&mut self) {
        *self = OutgoingRequests::default();
    }

    /// Returns a request, and releases the memory reserved for it.
    pub(crate) fn put(&mut self, mut draft: Box<OutgoingRequest>, memory: &mut Memory) {
        draft.release(&mut memory.pool);
        memory.release(&mut draft.promise);
        memory.release(&mut draft.answer);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(draft);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::Source;

    /// Members that clients may not send must not be configurable either: compares both lists.
    #[test]
    fn denied_members_are_refused_in_set_params_and_default_params() {
        let denied: Vec<&str> = dialect::denied_members().collect();
        assert!(denied.contains(&"store") && denied.contains(&"thread") && denied.len() >= 8, "{denied:?}");
        for (name, table) in denied.iter().flat_map(|name| [(name, "set_params"), (name, "default_params")]) {
            let text = format!(
                "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n[[models]]\nid = \"m\"\n\
                 context = \"1K\"\ntargets = [{{ provider = \"p\" }}]\n{table} = {{ {name} = 1 }}"
            );
            let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
            let source = Source { file: "t", text: &text, env: &|_| None, read: &read, run: &Source::no_program };
            let errors = Config::parse(&source).unwrap_err();
            let refused = format!("{table}.{name}: `{name}` cannot be set here: only the client or Tollgate sets it");
            assert!(errors.len() == 1 && errors[0].to_string().ends_with(&refused), "{name}: {errors:?}");
        }
    }

    /// Capabilities of the model `name` at a provider.
    fn takes(name: &str, (shape, url): (&str, &str), capability: &str) -> Capabilities {
        let text = format!(
            "[[providers]]\nname = \"p\"\nshape = \"{shape}\"\nbase_url = \"{url}/v1\"\n\
                 [[models]]\nid = \"m\"\ncontext = \"1K\"\ncapabilities = {{ {capability} }}\n\
                 targets = [{{ provider = \"p\", model = \"{name}\" }}]"
        );
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let source = Source { file: "t", text: &text, env: &|_| None, read: &read, run: &Source::no_program };
        let config = Config::parse(&source).unwrap();
        let model = &config.catalog.models()[0];
        capabilities(&config, model, &model.targets[0], &params(model))
    }

    #[test]
    fn model_name_decides_on_reasoning_unless_configured() {
        let (openai, other) = (("responses", "http://api.openai.com"), ("responses", "http://10.0.0.1"));
        assert!(!takes("gpt-4.1", openai, "").effort && takes("gpt-5.4-mini", openai, "").effort);
        assert!(takes("gpt-4.1", openai, "effort = true").effort);
        assert!(takes("gpt-oss", other, "").effort && !takes("gpt-oss", other, "effort = false").effort);
        assert!(!takes("gpt-oss", ("chat", "http://10.0.0.1"), "").effort);
    }

    #[test]
    fn model_name_decides_on_signatures_unless_configured() {
        let signs =
            |name: &str, capability: &str| takes(name, ("chat", "http://10.0.0.1"), capability).thought_signatures;
        assert!(signs("google/gemini-3.8-flash", "") && !signs("gemini-2.5-pro", ""));
        assert!(!signs("gemini-3.8-flash", "thought_signatures = false"));
        assert!(signs("my-gemini", "thought_signatures = true"));
    }

    #[test]
    fn tables_of_a_large_scan_are_not_kept_even_if_they_were_never_charged() {
        let members: String = (0..1000).map(|number| format!(",\"x{number}\":1")).collect();
        let body = format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}]{members}}}");
        let (mut draft, mut pool) = (OutgoingRequest::default(), Pool::new(1 << 20));
        draft.scan.finish(body.as_bytes()).unwrap();
        assert!(draft.scan.storage() > 0);
        draft.release(&mut pool);
        assert_eq!(draft.scan.storage(), 0);
    }

    #[test]
    fn body_in_pieces_is_written_completely_in_any_portions() {
        let (body, mut pool) = (b"0123456789", Pool::new(1 << 20));
        for room in 1..20 {
            let mut draft = OutgoingRequest::default();
            draft.text.push(&mut pool, b"abc");
            draft.pieces.extend([
                RewritePiece::Body(Span::new(0, 4)),
                RewritePiece::Text(Span::new(0, 3)),
                RewritePiece::Body(Span::new(6, 10)),
            ]);
            let mut out = Vec::new();
            let mut rounds = 0;
            while !draft.write_some(body, room, &mut out) {
                rounds += 1;
                assert!(rounds < 20);
            }
            assert_eq!(out, b"0123abc6789");
            draft.rewind(&mut pool);
            assert_eq!(pool.lent(), 0);
        }
    }
}
