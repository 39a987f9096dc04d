//! Records the events of one poll in the links, the listeners and the mailbox. Serves nobody: that is the run queue's
//! business.

use super::queues::touch;
use super::{FIRST_LISTENER, Reactor, SIGNALS, WAKER};
use crate::base::seam::{Core, Reply};
use crate::io::links::{Flags, SPECIAL};
use mio::Token;
use mio::event::Event;

impl<C: Core + 'static> Reactor<C> {
    pub(super) fn mark(&mut self, event: &Event) {
        let token = event.token();
        if token.0 & SPECIAL == 0 {
            return self.mark_link(event);
        }
        match token {
            WAKER => self.mail = true,
            Token(number) if number >= FIRST_LISTENER => self.listeners.mark(number - FIRST_LISTENER),
            token => {
                let which = SIGNALS.iter().position(|known| *known == token).unwrap_or_default();
                if let Some(signal) = self.signals.as_mut().and_then(|signals| signals.read(which)) {
                    self.replies.push(Reply::Signal(signal));
                }
            }
        }
    }

    fn mark_link(&mut self, event: &Event) {
        let Some((id, link)) = self.links.named_mut(event.token()) else { return };
        link.mark(event);
        if link.has(Flags::BLOCKED) && link.has(Flags::WRITE) {
            link.clear(Flags::BLOCKED);
            touch(&mut self.touched, link);
        }
        if link.has(Flags::READ.and(Flags::DIALING).and(Flags::SHAKING).and(Flags::PARTING)) {
            self.run_queue.line_up(id, link);
        }
    }
}
