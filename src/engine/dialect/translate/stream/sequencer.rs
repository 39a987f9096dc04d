//! Puts the deltas of an answer in order for a format with one open block at a time.
//!
//! A closed block cannot be opened again, and a client may run a call as soon as its block is closed. So whatever
//! arrives while a call is open waits for the end of that call, in the order of its arrival. Must never hold more than
//! [`TOOL_HELD_MAX`] bytes and [`PARTS_MAX`] parts. Called by [`super::Convert`].

use crate::dialect::answer::StreamFault;
use crate::dialect::neutral::delta::{Delta, TOOL_HELD_MAX, TextKind};
use crate::dialect::neutral::is_blank;
use std::collections::VecDeque;

/// Maximum number of parts that may wait. A model sends a handful.
const PARTS_MAX: usize = 1024;

/// A part of the answer that waits.
#[derive(Debug)]
enum WaitingPart {
    Text(TextKind, Vec<u8>),
    /// End of a piece of reasoning, with the block that its target must get back.
    Thought(Option<Vec<u8>>),
    Call {
        slot: usize,
        id: Vec<u8>,
        name: Vec<u8>,
        json: Vec<u8>,
        has_ended: bool,
    },
}

impl WaitingPart {
    fn size(&self) -> usize {
        let text = match self {
            WaitingPart::Text(_, text) => text.len(),
            WaitingPart::Thought(block) => block.as_ref().map_or(0, Vec::len),
            WaitingPart::Call { id, name, json, .. } => id.len() + name.len() + json.len(),
        };
        size_of::<WaitingPart>() + text
    }
}

/// The open call, and what waits for its end.
#[derive(Debug, Default)]
pub struct Sequencer {
    open: Option<usize>,
    parts: VecDeque<WaitingPart>,
    /// Bytes that wait.
    pub waiting: usize,
}

impl Sequencer {
    /// Passes on a delta, or keeps it; passes on what has waited for it. Between the beginning and the end of a call,
    /// only its arguments are passed on. A call whose end was not reported ends with the beginning of the next part.
    pub fn take(&mut self, delta: Delta<'_>, write: &mut dyn FnMut(Delta<'_>)) -> Result<(), StreamFault> {
        match delta {
            Delta::Start | Delta::Usage(_) | Delta::Ping | Delta::Stop { .. } => write(delta),
            Delta::ToolArgs { slot, .. } if self.open == Some(slot) => write(delta),
            Delta::ToolClose { slot } if self.open == Some(slot) => {
                self.open = None;
                write(delta);
                self.release(write);
            }
            Delta::ToolArgs { slot, json } => self.more(slot, json)?,
            Delta::ToolClose { slot } => {
                if let Some((_, has_ended)) = self.waiting_call(slot) {
                    *has_ended = true;
                }
            }
            Delta::End => {
                while self.open.take().is_some() {
                    self.release(write);
                }
                write(delta);
            }
            _ if self.open.is_none() => {
                if let Delta::ToolOpen { slot, .. } = delta {
                    self.open = Some(slot);
                }
                write(delta);
            }
            Delta::ToolOpen { slot, id, name } => {
                let (id, name) = (id.to_vec(), name.to_vec());
                self.hold(WaitingPart::Call { slot, id, name, json: Vec::new(), has_ended: false });
            }
            Delta::ReasoningEnd { block } => self.hold(WaitingPart::Thought(block.map(<[u8]>::to_vec))),
            Delta::Text(text) => self.hold_text(TextKind::Text, text),
            Delta::Refuse(text) => self.hold_text(TextKind::Refuse, text),
            Delta::Reasoning(text) => self.hold_text(TextKind::Think, text),
        }
        let is_too_much = self.waiting > TOOL_HELD_MAX || self.parts.len() > PARTS_MAX;
        if is_too_much { Err(StreamFault::TooLarge) } else { Ok(()) }
    }

    fn hold(&mut self, part: WaitingPart) {
        self.waiting += part.size();
        self.parts.push_back(part);
    }

    fn hold_text(&mut self, kind: TextKind, text: &[u8]) {
        match self.parts.back_mut() {
            Some(WaitingPart::Text(last, before)) if *last == kind => {
                before.extend_from_slice(text);
                self.waiting += text.len();
            }
            // Servers send a line feed between calls.
            _ if kind == TextKind::Text && is_blank(text) => {}
            _ => self.hold(WaitingPart::Text(kind, text.to_vec())),
        }
    }

    /// Keeps more arguments of a call that waits.
    fn more(&mut self, slot: usize, piece: &[u8]) -> Result<(), StreamFault> {
        match self.waiting_call(slot) {
            Some((json, _)) => {
                json.extend_from_slice(piece);
                self.waiting += piece.len();
                Ok(())
            }
            None if is_blank(piece) => Ok(()),
            // The call has ended.
            None => Err(StreamFault::Malformed),
        }
    }

    /// Arguments of a call that waits, and whether it has ended.
    fn waiting_call(&mut self, wanted: usize) -> Option<(&mut Vec<u8>, &mut bool)> {
        self.parts.iter_mut().find_map(|part| match part {
            WaitingPart::Call { slot, json, has_ended, .. } if *slot == wanted => Some((json, has_ended)),
            _ => None,
        })
    }

    /// Passes on what waits, up to a call that has not ended: that one is open now.
    fn release(&mut self, write: &mut dyn FnMut(Delta<'_>)) {
        while self.open.is_none()
            && let Some(part) = self.parts.pop_front()
        {
            self.waiting -= part.size();
            match part {
                WaitingPart::Text(kind, text) => write(kind.delta(&text)),
                WaitingPart::Thought(block) => write(Delta::ReasoningEnd { block: block.as_deref() }),
                WaitingPart::Call { slot, id, name, json, has_ended } => {
                    write(Delta::ToolOpen { slot, id: &id, name: &name });
                    if !json.is_empty() {
                        write(Delta::ToolArgs { slot, json: &json });
                    }
                    match has_ended {
                        true => write(Delta::ToolClose { slot }),
                        false => self.open = Some(slot),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    /// A word for a delta.
    fn word(delta: Delta<'_>) -> String {
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
        match delta {
            Delta::Text(more) => format!("text:{} ", text(more)),
            Delta::Reasoning(more) => format!("thought:{} ", text(more)),
            Delta::ReasoningEnd { block } => format!("sealed:{} ", text(block.unwrap_or_default())),
            Delta::ToolOpen { slot, .. } => format!("open{slot} "),
            Delta::ToolArgs { slot, json } => format!("args{slot}:{} ", text(json)),
            Delta::ToolClose { slot } => format!("close{slot} "),
            Delta::End => "end".to_owned(),
            _ => "other ".to_owned(),
        }
    }

    /// The deltas that are passed on for these ones.
    fn sequence(deltas: &[Delta<'_>]) -> Result<String, StreamFault> {
        let (mut sequencer, mut out) = (Sequencer::default(), String::new());
        deltas.iter().try_for_each(|delta| sequencer.take(*delta, &mut |passed| out += &word(passed)))?;
        Ok(out)
    }

    fn open(slot: usize) -> Delta<'static> {
        Delta::ToolOpen { slot, id: b"i", name: b"f" }
    }

    fn args(slot: usize, json: &[u8]) -> Delta<'_> {
        Delta::ToolArgs { slot, json }
    }

    #[test]
    fn whatever_arrives_while_a_call_is_open_waits_in_order() {
        let close = |slot| Delta::ToolClose { slot };
        let (text, blank) = (Delta::Text(b"t"), Delta::Text(b"\\n"));
        for (deltas, want) in [
            (vec![text, open(0), args(0, b"a"), close(0), text], "text:t open0 args0:a close0 text:t end"),
            (vec![open(0), text, blank, args(0, b"a"), Delta::Ping], "open0 args0:a other text:t\\n end"),
            (vec![open(0), blank, open(1), args(0, b"a"), args(1, b"b")], "open0 args0:a open1 args1:b end"),
            // The next call is open as soon as the one before it has ended.
            (vec![open(0), open(1), args(1, b"b"), close(0), args(1, b"c")], "open0 close0 open1 args1:b args1:c end"),
            (vec![open(0), open(1), close(1), text, open(2), close(0)], "open0 close0 open1 close1 text:t open2 end"),
            (
                vec![open(0), Delta::Reasoning(b"x"), Delta::ReasoningEnd { block: Some(b"s") }, open(1), close(0)],
                "open0 close0 thought:x sealed:s open1 end",
            ),
            (vec![open(0), close(0), args(0, b" ")], "open0 close0 end"),
        ] {
            let ended: Vec<Delta<'_>> = deltas.iter().copied().chain([Delta::End]).collect();
            assert_eq!(sequence(&ended).as_deref(), Ok(want), "{deltas:?}");
        }
        assert_eq!(sequence(&[open(0), close(0), args(0, b"a")]), Err(StreamFault::Malformed));
        let large = vec![b'x'; TOOL_HELD_MAX];
        assert_eq!(sequence(&[open(0), open(1), args(1, &large)]), Err(StreamFault::TooLarge));
        let many: Vec<Delta<'_>> = [text, Delta::Reasoning(b"x")].repeat(PARTS_MAX);
        assert_eq!(sequence(&[&[open(0)], &many[..]].concat()), Err(StreamFault::TooLarge));
    }

    #[test]
    fn nothing_is_lost_repeated_or_put_into_a_call() {
        for seed in 0..2000 {
            let mut rng = Rng::from_u64(seed);
            let mut deltas = Vec::new();
            let (mut begun, mut ended) = (0, [false; 4]);
            for _ in 0..rng.below(30) {
                let slot = rng.below(4) as usize;
                let piece: &[u8] = [&b"a"[..], b"b", b"c"][rng.below(3) as usize];
                deltas.push(match rng.below(8) {
                    0 | 1 if begun < 4 => {
                        begun += 1;
                        open(begun - 1)
                    }
                    2 if slot < begun => {
                        ended[slot] = true;
                        Delta::ToolClose { slot }
                    }
                    3..=5 if slot < begun && !ended[slot] => args(slot, piece),
                    6 => Delta::Reasoning(piece),
                    7 => Delta::ReasoningEnd { block: Some(piece) },
                    _ => Delta::Text(piece),
                });
            }
            deltas.push(Delta::End);
            let out = sequence(&deltas).unwrap();
            let mut inside = None;
            for word in out.split(' ') {
                match word.split_at(word.find(':').unwrap_or(word.len())).0 {
                    kind if kind.starts_with("open") => inside = Some(kind[4..].to_owned()),
                    kind if kind.starts_with("args") => assert_eq!(inside.as_deref(), Some(&kind[4..]), "{out}"),
                    kind if kind.starts_with("close") => {
                        assert_eq!(inside.take().as_deref(), Some(&kind[5..]), "{out}")
                    }
                    _ => inside = None,
                }
            }
            // The texts of each kind and of each call, joined.
            let joined = |words: &str, kind: &str| -> String {
                words.split(' ').filter_map(|word| word.strip_prefix(kind)).collect()
            };
            let arrived: String = deltas.iter().copied().map(word).collect();
            for kind in ["text:", "thought:", "sealed:", "args0:", "args1:", "args2:", "args3:"] {
                assert_eq!(joined(&out, kind), joined(&arrived, kind), "{kind} {out}");
            }
            assert_eq!(out.matches("open").count(), begun, "{out}");
        }
    }
}
