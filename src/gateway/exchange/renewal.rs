//! Retries a request after its last provider refuses a secret that can change without a restart: it waits until the
//! secret has been read again, and is sent once more with it.

use super::build::Built;
use super::event::{ClientMessage, Effect};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::state::{Attempting, Exchange, Half, Outgoing, State};
use crate::gateway::cx::Cx;
use crate::policy::config::Origin;
use std::sync::Arc;

impl Exchange {
    /// No other target is left: one more attempt at the present one, where its provider has refused a secret that is
    /// another one by now; a wait for that, where it is being asked for; else the end.
    pub(super) fn last_resort(
        &mut self,
        draft: Outgoing,
        fault: Fault,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Result<Outgoing, Box<Effect>> {
        if fault.kind == FaultKind::Status(401) && !self.job.attempt.renewed {
            self.job.attempt.renewed = true;
            if self.job.adopt_secret(cx) {
                return self.once_more(draft, fault, message, cx);
            }
            if self.job.origin().is_some_and(|origin| cx.renewals.contains(origin)) {
                let timeout = self.job.target().map_or(Default::default(), |target| target.limits.connect_timeout);
                let by = cx.now.mono.after(timeout);
                self.state = State::Attempting(Attempting { draft, half: Half::Renewing, by });
                return Err(Box::new(Effect::Wait));
            }
        }
        Err(Box::new(self.give_up(draft, fault, cx)))
    }

    /// Writes the request for the present target again.
    fn once_more(
        &mut self,
        mut draft: Outgoing,
        fault: Fault,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Result<Outgoing, Box<Effect>> {
        match self.job.build(&mut draft, message, cx) {
            Ok(Built::Whole) => Ok(draft),
            Ok(Built::TooLong) => {
                let failed = Some(Box::new((fault, self.job.attempt.target)));
                Err(Box::new(self.translate(draft, failed, cx)))
            }
            Err(_) => Err(Box::new(self.give_up(draft, fault, cx))),
        }
    }

    /// True if it waits for the secret of this origin.
    pub(crate) fn awaits_secret(&self, origin: &Origin) -> bool {
        match &self.state {
            State::Attempting(Attempting { half: Half::Renewing, .. }) => self.job.origin() == Some(origin),
            _ => false,
        }
    }

    /// The secret has been asked for, or takes too long.
    pub(super) fn renewed(&mut self, draft: Outgoing, message: &ClientMessage, cx: &mut Cx) -> Effect {
        let fault = Fault::from(FaultKind::Status(401));
        if !self.job.adopt_secret(cx) {
            return self.give_up(draft, fault, cx);
        }
        match self.once_more(draft, fault, message, cx) {
            Ok(draft) => self.begin_attempt(draft, message, cx),
            Err(effect) => *effect,
        }
    }
}

impl RequestJob {
    /// Origin of the present target's secret.
    fn origin(&self) -> Option<&Origin> {
        let (_, target, provider) = self.route()?;
        Some(provider.credentials.get(target.credential)?.secret.origin())
    }

    /// The secret that the attempt is sent has been replaced by another one.
    pub(super) fn has_newer_secret(&self, cx: &Cx) -> bool {
        let (own, present) = (&self.request.setup, &cx.setup);
        if Arc::ptr_eq(own, present) {
            return false;
        }
        let Some((_, target, provider)) = self.route() else { return false };
        let used = provider.credentials.get(target.credential);
        let known = present.config.providers.iter().find(|one| one.name == provider.name);
        let fresh = known.and_then(|one| one.credentials.get(target.credential));
        used.zip(fresh).is_some_and(|(used, fresh)| used.secret.expose() != fresh.secret.expose())
    }

    /// Goes on with the present configuration, if all that it has for this request that another one has not is the
    /// secret of the present target.
    fn adopt_secret(&mut self, cx: &Cx) -> bool {
        let (own, present, model) = (&self.request.setup, &cx.setup, self.model());
        // Configurations of the same number differ only in secrets and lists of models, which may shift the model.
        let index = self.asked.map_or(usize::MAX, |asked| asked.model as usize);
        let there = present.config.catalog.get(index).map(|one| &one.id);
        let is_there = there.is_some() && there == model.map(|model| &model.id);
        let adopts = own.epoch == present.epoch && is_there && self.has_newer_secret(cx);
        if adopts {
            self.request.setup = present.clone();
        }
        adopts
    }
}
