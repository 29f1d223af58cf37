//! The lab's report as one HTML file. The page contains the results, the articles' figures, the
//! script, the style and the chart library, so it opens from disk without a network.
//!
//! Results reach the page only as JSON in an inert block. The page's content security policy
//! permits only the script and the style that this module embeds. It forbids the page to load
//! anything.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// The parts of the page's script. They are concatenated and share one scope. The last one starts
/// the page.
const SCRIPT: [&str; 20] = [
    include_str!("script/results.js"),
    include_str!("script/format.js"),
    include_str!("script/elements.js"),
    include_str!("script/colours.js"),
    include_str!("script/plots.js"),
    include_str!("script/lines.js"),
    include_str!("script/bars.js"),
    include_str!("script/cloud.js"),
    include_str!("script/figures.js"),
    include_str!("script/tables.js"),
    include_str!("script/comparisons.js"),
    include_str!("script/summary.js"),
    include_str!("script/experiments.js"),
    include_str!("script/counter.js"),
    include_str!("script/rack-attack.js"),
    include_str!("script/persistence.js"),
    include_str!("script/cliff.js"),
    include_str!("script/converge.js"),
    include_str!("script/others.js"),
    include_str!("script/main.js"),
];
const STYLE: &str = include_str!("report.css");
/// The figures that the articles' texts give.
const PUBLISHED: &str = include_str!("published.json");
const CHARTS: &str = include_str!("../../../../../assets/uplot/uPlot.iife.min.js");
const CHARTS_STYLE: &str = include_str!("../../../../../assets/uplot/uPlot.min.css");
const CHARTS_LICENCE: &str = include_str!("../../../../../assets/uplot/LICENSE");

/// The text by which a page of the lab is recognised. Pages of all versions contain it.
pub(crate) const MARK: &str = "<script type=\"application/json\" id=\"results\">";

/// Returns the report of the results in `results_json`, which must be JSON.
pub(crate) fn html(results_json: &str) -> String {
    let nonce = nonce();
    let results = inert(results_json);
    let published = inert(PUBLISHED);
    let script = SCRIPT.concat();
    format!(
        "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-{nonce}'; \
         style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; form-action 'none'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>Larder and its peers, measured</title>
<link rel=\"icon\" href=\"data:,\">
<style nonce=\"{nonce}\">
{CHARTS_STYLE}
{STYLE}</style>
</head>
<body>
<noscript>This report draws itself with JavaScript, all of which is in this file. The figures are below as \
         JSON, in the source of this page.</noscript>
<script type=\"application/json\" id=\"results\">{results}</script>
<script type=\"application/json\" id=\"published\">{published}</script>
<script nonce=\"{nonce}\">
/*!
{CHARTS_LICENCE}
*/
{CHARTS}</script>
<script type=\"module\" nonce=\"{nonce}\">
{script}</script>
</body>
</html>
"
    )
}

/// Returns the same JSON without characters that could end a `<script>` block or a line of script.
/// Outside strings JSON has none of them, so each can be replaced by its escape.
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Returns a random nonce for the page's content security policy. The results were written before
/// the nonce was drawn, so they do not contain it, and a browser would not run a script in them.
fn nonce() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Made-up results of every kind that the report draws. No machine has measured them.
    const MADE_UP: &str = include_str!("made-up.json");

    /// Returns the text of the JSON block `id`.
    fn block<'page>(page: &'page str, id: &str) -> &'page str {
        let open = format!("<script type=\"application/json\" id=\"{id}\">");
        let (_, rest) = page.split_once(&open).unwrap();
        rest.split_once("</script>").unwrap().0
    }

    #[test]
    fn the_page_contains_the_results_and_the_articles_figures() {
        let page = html(MADE_UP);
        let parsed = |json: &str| serde_json::from_str::<Value>(json).unwrap();
        assert_eq!(parsed(block(&page, "results")), parsed(MADE_UP));
        assert_eq!(parsed(block(&page, "published")), parsed(PUBLISHED));
        assert!(page.contains("Copyright (c) 2022 Leon Sorokin"));
    }

    #[test]
    fn text_in_results_cannot_leave_its_block() {
        let hostile = "</script><script>alert(1)</script><!--<script>\u{2028}\u{2029}]]>";
        let json = serde_json::json!({ "why": hostile }).to_string();
        let page = html(&json);
        let embedded = block(&page, "results");
        assert!(!embedded.contains(['<', '\u{2028}', '\u{2029}']), "{embedded}");
        let read: Value = serde_json::from_str(embedded).unwrap();
        assert_eq!(read["why"], hostile);
        assert_eq!(page.matches("</script>").count(), html("{}").matches("</script>").count());
    }

    #[test]
    fn the_page_loads_nothing() {
        let page = html("{}");
        for asset in [STYLE, CHARTS, CHARTS_STYLE, CHARTS_LICENCE].iter().chain(&SCRIPT) {
            assert!(!asset.contains("</s") && !asset.contains("<!--"));
        }
        for word in [" src=", "@import", "url(", "import(", "fetch(", "XMLHttpRequest"] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn each_page_has_its_own_nonce() {
        let nonce = |page: &str| page.split("nonce-").nth(1).unwrap()[..32].to_owned();
        let (one, other) = (nonce(&html("{}")), nonce(&html("{}")));
        assert_ne!(one, other);
        assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn the_table_of_the_first_article_is_whole() {
        let published: Value = serde_json::from_str(PUBLISHED).unwrap();
        let table = &published["counter"]["table"];
        assert_eq!(table["x"].as_array().map(Vec::len), Some(10));
        let columns = table["columns"].as_array().unwrap();
        let names: Vec<_> = columns.iter().filter_map(|column| column["name"].as_str()).collect();
        let article = "memcache mongo mysql mysql_active_record mysql_innodb postgresql redis";
        assert_eq!(names.join(" "), article);
        for column in columns {
            assert_eq!(column["rate"].as_array().map(Vec::len), Some(10), "{column}");
        }
        assert_eq!(columns[0]["rate"][0], 29_179.649_46);
        assert_eq!(columns[6]["rate"][9], 16_858.076_16);
    }
}
