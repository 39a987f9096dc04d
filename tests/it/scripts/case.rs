//! Parses a transcript file into cases: each line becomes a step of some kind, without further interpretation.

/// Direction of bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Direction {
    /// `>`
    ClientSends,
    /// `<`
    ClientGets,
    /// `>>`
    ProviderGets,
    /// `<<`
    ProviderSends,
}

/// Framing of a block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Framed {
    /// No chunk framing.
    Plain,
    /// `+`: one chunk.
    Chunk,
    /// `.`: the last chunk.
    LastChunk,
}

/// Action of a step.
#[derive(Clone, PartialEq, Debug)]
pub enum Act {
    /// A block of bytes.
    Block { direction: Direction, label: String, framed: Framed, lines: Vec<String> },
    /// Advances the clock by this number of microseconds.
    Wait(u64),
    /// Any other event, as words.
    Words(Vec<String>),
}

/// A step and its line number, counted from 1.
#[derive(Clone, Debug)]
pub struct Step {
    pub line: usize,
    pub act: Act,
}

/// Setup before the steps.
#[derive(Clone, Default, Debug)]
pub struct Preamble {
    /// (section, `key = value`)
    pub settings: Vec<(String, String)>,
    /// Words of each key: its name, then its attributes.
    pub keys: Vec<Vec<String>>,
    /// (name, text)
    pub lets: Vec<(String, String)>,
    /// Additional start state of the gateway.
    pub starts: Vec<Vec<String>>,
}

/// A case of a file.
#[derive(Clone, Debug)]
pub struct Case {
    /// `folder/file.txt: title`
    pub name: String,
    pub preamble: Preamble,
    pub steps: Vec<Step>,
}

/// Returns all cases of a file.
pub fn read(file: &str, text: &str) -> Vec<Case> {
    let mut common = Preamble::default();
    let mut cases: Vec<Case> = Vec::new();
    let mut open_block = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            open_block = false;
            continue;
        }
        if let Some(title) = line.strip_prefix("=== ") {
            let name = format!("{file}: {title}");
            assert!(cases.iter().all(|case| case.name != name), "{file}:{number}: two cases have this title");
            cases.push(Case { name, preamble: common.clone(), steps: Vec::new() });
            open_block = false;
            continue;
        }
        let preamble = cases.last_mut().map_or(&mut common, |case| &mut case.preamble);
        if before(line, preamble) {
            continue;
        }
        let Some(case) = cases.last_mut() else { panic!("{file}:{number}: a step precedes the first case") };
        let act = act(line).unwrap_or_else(|| panic!("{file}:{number}: unknown line: {line}"));
        if let (true, Some(last)) = (open_block, case.steps.last_mut())
            && joined(last, &act)
        {
            continue;
        }
        open_block = matches!(act, Act::Block { .. });
        case.steps.push(Step { line: number, act });
    }
    cases
}

/// Parses a setup line. Returns false for any other line.
fn before(line: &str, preamble: &mut Preamble) -> bool {
    if let Some((section, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        preamble.settings.push((section.to_string(), rest.trim().to_string()));
    } else if let Some(rest) = line.strip_prefix("key ") {
        preamble.keys.push(rest.split_whitespace().map(String::from).collect());
    } else if let Some(rest) = line.strip_prefix("start ") {
        preamble.starts.push(rest.split_whitespace().map(String::from).collect());
    } else if let Some((name, text)) = line.strip_prefix("let ").and_then(|rest| rest.split_once(" = ")) {
        preamble.lets.push((name.trim().to_string(), text.to_string()));
    } else {
        return false;
    }
    true
}

fn joined(last: &mut Step, act: &Act) -> bool {
    let Act::Block { direction, label, framed, lines } = &mut last.act else { return false };
    let Act::Block { direction: d, label: l, framed: f, lines: more } = act else { return false };
    let same = (*direction, &*label, *framed) == (*d, l, *f);
    if same {
        lines.extend_from_slice(more);
    }
    same
}

fn act(line: &str) -> Option<Act> {
    if let Some(wait) = line.strip_prefix('+') {
        return tollgate::policy::config::units::duration(wait).map(|wait| Act::Wait(wait.as_micros() as u64));
    }
    let arrow = line.find(['<', '>']).filter(|at| line[..*at].chars().all(|c| c.is_ascii_alphanumeric()));
    let Some(at) = arrow else { return Some(Act::Words(line.split_whitespace().map(String::from).collect())) };
    let (label, rest) = line.split_at(at);
    let arrows = [
        (">>", Direction::ProviderGets),
        ("<<", Direction::ProviderSends),
        (">", Direction::ClientSends),
        ("<", Direction::ClientGets),
    ];
    let (rest, direction) =
        arrows.iter().find_map(|(arrow, direction)| Some((rest.strip_prefix(arrow)?, *direction)))?;
    let (rest, framed) = match rest.chars().next() {
        Some('+') => (&rest[1..], Framed::Chunk),
        Some('.') => (&rest[1..], Framed::LastChunk),
        _ => (rest, Framed::Plain),
    };
    let text = match rest.strip_prefix(' ') {
        Some(text) => text,
        None if rest.is_empty() => "",
        None => return None,
    };
    Some(Act::Block { direction, label: label.to_string(), framed, lines: vec![text.to_string()] })
}
