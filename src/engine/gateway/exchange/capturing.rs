//! Keeps what the capture of a key needs of its requests, see `gateway::report::captures`. Called only for requests of
//! a captured key.

use super::event::ClientMessage;
use super::job::RequestJob;
use crate::base::time::Unix;
use crate::gateway::cx::Cx;
use crate::gateway::orders::Order;
use crate::gateway::report::captures::Captured;

/// Log line text for a request without memory.
const NO_MEMORY: &str = "too little memory is free for its headers";

/// The captured request; its head and body are kept now, unless they were kept before. `is_over`: no more of the
/// body will be sent on.
fn captured<'a>(
    job: &'a mut RequestJob,
    message: (&[u8], &[u8]),
    is_over: bool,
    cx: &mut Cx,
) -> Option<&'a mut Captured> {
    let diagnosis = job.notes.get_mut();
    if diagnosis.captured.is_none() {
        let ((head, body), request) = (message, &job.request);
        let key = cx.access.keys.get(request.found.key?).id();
        let age = cx.now.mono.micros_since(request.received) / 1000;
        let received_at = Unix(cx.now.unix.0.saturating_sub(age));
        let mut captured = Captured::new(key, request.id, received_at, &request.setup.config.server.key_prefix);
        let is_form = request.is_upload();
        captured.received(head, is_form, (&mut cx.report.captures, &mut cx.memory.pool));
        // The parts of a form are counted as they are sent on.
        if !is_form || is_over {
            captured.body(body, (&mut cx.report.captures, &mut cx.memory.pool));
        }
        diagnosis.captured = Some(Box::new(captured));
    }
    diagnosis.captured.as_deref_mut()
}

/// Keeps the client's request before it is dropped.
#[cold]
#[inline(never)]
pub(crate) fn capture_received(job: &mut RequestJob, message: (&[u8], &[u8]), cx: &mut Cx) {
    let _ = captured(job, message, true, cx);
}

/// Keeps bytes that were put into the queue of a provider, a head first if the request `begins`.
#[cold]
#[inline(never)]
pub(crate) fn capture_sent(job: &mut RequestJob, message: &ClientMessage, begins: bool, bytes: &[u8], cx: &mut Cx) {
    let setup = job.request.setup.clone();
    let target = job.attempt.target(&job.request).map(|target| (target.label.clone(), target.provider));
    let is_form = job.request.is_upload();
    let Some(captured) = captured(job, (message.head, message.body), false, cx) else { return };
    let mut body = bytes;
    if begins && let Some((target, provider)) = target {
        let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let (head, rest) = bytes.split_at(end);
        body = rest;
        let provider = setup.config.providers.get(provider);
        let configured = provider.iter().flat_map(|one| one.headers.iter().map(|(name, _)| name.as_str()));
        let credential = provider.and_then(|one| Some(one.header_of(one.credentials.first()?).0));
        let room = (&mut cx.report.captures, &mut cx.memory.pool);
        captured.sends(&target, head, configured.chain(credential), is_form, room);
    }
    captured.sent(body, (&mut cx.report.captures, &mut cx.memory.pool));
}

/// Counts a part of a form that has been sent on.
#[cold]
#[inline(never)]
pub(crate) fn capture_form(job: &mut RequestJob, bytes: &[u8], cx: &mut Cx) {
    if let Some(captured) = job.notes.get_mut().captured.as_deref_mut() {
        captured.body(bytes, (&mut cx.report.captures, &mut cx.memory.pool));
    }
}

/// Keeps a part of the answer that is sent to the client, with its head if it begins.
#[cold]
#[inline(never)]
pub(crate) fn capture_answer(job: &mut RequestJob, head: &[u8], body: &[u8], cx: &mut Cx) {
    if let Some(captured) = job.notes.get_mut().captured.as_deref_mut() {
        captured.answer(head, body, (&mut cx.report.captures, &mut cx.memory.pool));
    }
}

/// Has the request written, which has ended.
#[cold]
#[inline(never)]
pub(crate) fn end_capture(job: &mut RequestJob, cx: &mut Cx) {
    let (Some(captured), Some(key)) = (job.notes.get_mut().captured.take(), job.request.found.key) else {
        return;
    };
    // A request that ends after its capture is not written.
    let is_over = !cx.access.keys.get(key).is_captured(cx.now.unix);
    if is_over || captured.is_lost() {
        let done = if is_over { None } else { Some(Err(NO_MEMORY.to_owned())) };
        return cx.captured(&captured.key, captured.kept(), done);
    }
    cx.commands.orders.push(Order::Capture(captured));
}
