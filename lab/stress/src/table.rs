//! A table for people: named cells in columns.
//!
//! Bounds: its input. Must never know: the meaning of a figure.

/// Rows that matter when they are not 0: where they are 0 in every column, they are left out and
/// named below.
const QUIET: [&str; 12] = [
    "due and not sent",
    "missing",
    "double",
    "late",
    "damaged",
    "whole, not accepted",
    "not answered",
    "store queries, not answered 200",
    "store queries, skipped",
    "OOM kills",
    "restarts",
    "died",
];

/// Columns of named cells side by side, each name once, in the order in which names first come.
pub(crate) fn table(heads: &[String], columns: &[Vec<(String, String)>]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for column in columns {
        let mut after = 0;
        for (name, _) in column {
            match names.iter().position(|known| known == name) {
                Some(place) => after = place + 1,
                None => {
                    names.insert(after, name);
                    after += 1;
                }
            }
        }
    }
    let is_of = |name: &str, kind: &str| {
        name.strip_suffix(kind).is_some_and(|before| before.is_empty() || before.ends_with(", "))
    };
    let is_quiet = |kind: &str| {
        let mut cells = columns.iter().flatten().filter(|(name, _)| is_of(name, kind)).peekable();
        cells.peek().is_some() && cells.all(|(_, cell)| cell == "0")
    };
    let left_out: Vec<&str> = QUIET.into_iter().filter(|kind| is_quiet(kind)).collect();
    names.retain(|name| !left_out.iter().any(|kind| is_of(name, kind)));
    let letters = |text: &str| text.chars().count();
    let first = names.iter().map(|name| letters(name)).max().unwrap_or(0);
    let widths: Vec<usize> = heads
        .iter()
        .zip(columns)
        .map(|(head, column)| {
            column.iter().map(|(_, cell)| letters(cell)).chain([letters(head)]).max().unwrap_or(0)
                + 2
        })
        .collect();
    let mut text = String::new();
    if heads.iter().any(|head| !head.is_empty()) {
        text += &" ".repeat(first);
        heads.iter().zip(&widths).for_each(|(head, width)| text += &format!("{head:>width$}"));
        text.push('\n');
    }
    for name in names {
        text += &format!("{name:<first$}");
        for (column, width) in columns.iter().zip(&widths) {
            let cell = column.iter().find(|(known, _)| known == name).map_or("", |(_, cell)| cell);
            text += &format!("{cell:>width$}");
        }
        text.push('\n');
    }
    if !left_out.is_empty() {
        text += &format!("0 everywhere: {}\n", left_out.join("; "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(name: &str, cell: &str) -> (String, String) {
        (name.to_owned(), cell.to_owned())
    }

    #[test]
    fn columns_with_different_rows_stand_side_by_side() {
        let columns = [
            vec![cell("a", "1"), cell("c", "3")],
            vec![cell("a", "10"), cell("b", "20"), cell("c", "30")],
        ];
        let text = table(&["x".into(), "y".into()], &columns);
        assert_eq!(text, "   x   y\na  1  10\nb     20\nc  3  30\n");
    }

    #[test]
    fn rows_without_news_are_named_and_rows_with_news_are_shown() {
        let columns = [vec![
            cell("r 1, late", "0"),
            cell("r 1, double", "0"),
            cell("r 2, double", "3"),
            cell("reached", "0"),
        ]];
        let text = table(&["x".into()], &columns);
        assert_eq!(
            text,
            "             x\nr 1, double  0\nr 2, double  3\nreached      0\n0 everywhere: late\n"
        );
    }
}
