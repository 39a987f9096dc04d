//! The body for a target: written from the client's own, spliced where the target speaks its shape, translated where it
//! does not; and what of it the target is not sent.

use super::event::Message;
use super::state::{Attempt, Exchange};
use crate::base::buf::Pool;
use crate::dialect::{self, Invalid, TranslationState, rewrite};
use crate::gateway::budget::REQUEST_BYTES;
use crate::gateway::cx::Cx;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::refusal::Refusal;
use crate::wire::Dialect;
use crate::wire::json::unescape;

/// Names of members not passed on that are told of one request.
const DROPPED_MAX: usize = 16;

/// How the writing of an outgoing body went.
pub(super) enum Built {
    /// All of it is there.
    Whole,
    /// It is too long to be translated on the loop.
    TooLong,
}

impl Exchange {
    /// Writes the body for the target of `at` from the client's own, and notes what of that the target is not sent.
    #[inline]
    pub(super) fn build(
        &mut self,
        draft: &mut OutgoingRequest,
        at: &Attempt,
        message: &Message<'_>,
        cx: &mut Cx,
    ) -> Result<Built, Refusal> {
        let built = self.lay_out(draft, at, message, cx)?;
        // The body goes to a helper thread.
        if matches!(built, Built::TooLong) {
            self.count_prompt(draft, message, cx);
        }
        let Some(((dialect, _, provider), to)) = self.route(at).zip(self.wanted(at)) else { return Ok(built) };
        let translated = provider.shape != dialect.upstream();
        let mut names = dialect::dropped(dialect, translated, message.body, draft.scan.fields(), &to).peekable();
        if names.peek().is_some() || self.diagnosis.is_some() {
            let mut plain = Vec::new();
            let mut tell = |name: &[u8]| {
                plain.clear();
                unescape(name, &mut plain);
                self.told(&plain)
            };
            let names = names.take(DROPPED_MAX).map(&mut tell).collect();
            self.note_dropped(names);
        }
        Ok(built)
    }

    fn lay_out(
        &self,
        draft: &mut OutgoingRequest,
        at: &Attempt,
        message: &Message<'_>,
        cx: &mut Cx,
    ) -> Result<Built, Refusal> {
        let Some(((dialect, _, provider), to)) = self.route(at).zip(self.wanted(at)) else {
            return Err(Refusal::internal());
        };
        let translated = provider.shape != dialect.upstream();
        draft.rewind(&mut cx.pool);
        let added = to.capabilities.params_room();
        if (translated || added > 0)
            && let Some(key) = self.request.found.key
        {
            // What an earlier attempt was promised for its translation serves for this one.
            let length = message.body.len();
            let room = if translated { OutgoingRequest::room_for(length) } else { REQUEST_BYTES };
            let wanted = length + room + added + draft.scan.storage();
            let more = wanted.saturating_sub(draft.promise.total());
            cx.budget.beyond_body(&mut draft.promise, key, more, &mut cx.pool)?;
        }
        if translated && cx.is_long(message.body.len()) {
            return Ok(Built::TooLong);
        }
        if translated {
            let to = dialect::Target { cache_key: draft.cache_key, ..to };
            draft
                .translate(dialect, message.body, &to, &mut cx.pool)
                .map_err(|Invalid(why)| Refusal::invalid_body(why))?;
            self.promise_names(draft, cx)?;
        } else {
            splice(draft, dialect, &to, message.body, &mut cx.pool)?;
        }
        if translated || added > 0 {
            let storage = message.storage + draft.storage();
            cx.budget.came(&mut draft.promise, storage, &mut cx.pool);
        }
        Ok(Built::Whole)
    }

    /// What the target of `at` takes.
    #[inline]
    pub(super) fn wanted(&self, at: &Attempt) -> Option<dialect::Target<'_>> {
        let (dialect, target, provider) = self.route(at)?;
        let asked = self.asked.map_or(0, |asked| asked.model as usize);
        let before = match dialect {
            Dialect::Relay(_) => self.model()?.targets.len(),
            _ => 0,
        };
        let capabilities = self.request.setup.requests.capabilities(asked, before + at.target as usize)?;
        Some(dialect::Target { model: &target.model, shape: provider.shape, capabilities, cache_key: None })
    }

    /// What the translation of the answer must know stays when the body has gone.
    #[inline]
    pub(super) fn promise_names(&self, draft: &mut OutgoingRequest, cx: &mut Cx) -> Result<(), Refusal> {
        let names = draft.state.as_ref().map_or(0, TranslationState::storage);
        match self.request.found.key {
            Some(key) if names > 0 => cx.budget.beyond_body(&mut draft.promise, key, names, &mut cx.pool),
            _ => Ok(()),
        }
    }
}

/// The client's own body with our words spliced in.
fn splice(
    draft: &mut OutgoingRequest,
    dialect: Dialect,
    to: &dialect::Target<'_>,
    body: &[u8],
    pool: &mut Pool,
) -> Result<(), Refusal> {
    let (fields, pieces) = (draft.scan.fields(), &mut draft.pieces);
    let length = draft.text.edit_small(pool, |out| rewrite(dialect, body, fields, to, out, pieces));
    draft.set_length(length.map_err(|Invalid(why)| Refusal::invalid_body(why))?);
    Ok(())
}
