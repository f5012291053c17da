# ruff: noqa: E501 (the lines of the script)
"""The script that reads a page as text and finds its elements. It runs in a world of its own: the
page's scripts neither see nor change it.

An element keeps its number while it lives, and no number is given twice: `firstNumber` is higher
than every number of earlier pages.
"""

MAX_PAGE_NODES = 60_000
MAX_PAGE_CHARS = 400_000
MAX_NAME_CHARS = 120
MAX_SHOWN_OPTIONS = 20
QUIET_MS = 75
MAX_QUIET_MS = 2000
"""After an action the page is read when nothing has changed for a moment, or after this time.
Answers that it waits for are awaited before that."""

PAGE_SCRIPT = (
    """
(firstNumber, prefix) => {
  if (globalThis.chatdPage) return;
  const numbers = new WeakMap(), elements = new Map();
  let next = firstNumber;
  const SKIPPED = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'DATALIST', 'OPTION']);
  const ROLES = new Set(['button', 'link', 'checkbox', 'radio', 'switch', 'tab', 'menuitem',
    'menuitemcheckbox', 'menuitemradio', 'option', 'combobox', 'textbox', 'searchbox', 'slider',
    'spinbutton', 'treeitem', 'gridcell']);
  const CONTROLS = 'a[href],button,input,textarea,select,summary,[role],[contenteditable]';
  const INPUT_KINDS = {checkbox: 'checkbox', radio: 'radio', submit: 'button', button: 'button',
    reset: 'button', image: 'button', file: 'file', range: 'slider'};
  const squeeze = (text) => (text || '').replace(/\\s+/g, ' ').trim();
  const clip = (text, size = MAX_NAME) => text.length > size ? text.slice(0, size) + '\\u2026' : text;
  const quote = (text) => JSON.stringify(clip(squeeze(text)));

  function numberOf(element) {
    let number = numbers.get(element);
    if (!number) {
      number = next++;
      numbers.set(element, number);
      elements.set(number, new WeakRef(element));
    }
    return prefix + 'e' + number;
  }

  function find(number) {
    const element = elements.get(number)?.deref();
    return element?.isConnected ? element : null;
  }

  function kindOf(element, style) {
    const role = element.getAttribute('role');
    switch (element.tagName) {
      case 'A': if (element.href && !(role && ROLES.has(role))) return 'link'; break;
      case 'BUTTON': case 'SUMMARY': if (!(role && ROLES.has(role))) return 'button'; break;
      case 'INPUT': return element.type === 'hidden' ? '' : INPUT_KINDS[element.type] || 'textbox';
      case 'TEXTAREA': return 'textbox';
      case 'SELECT': return 'select';
    }
    if (role && ROLES.has(role)) return role;
    if (element.isContentEditable && !element.parentElement?.isContentEditable) return 'textbox';
    if (element.hasAttribute('onclick')) return 'clickable';
    const parent = element.parentElement;
    if (style.cursor === 'pointer' && element.tagName !== 'LABEL' && parent
        && parent.ownerDocument.defaultView.getComputedStyle(parent).cursor !== 'pointer') {
      return 'clickable';
    }
    return '';
  }

  function nameOf(element, kind) {
    const named = element.getAttribute('aria-labelledby');
    const texts = [
      element.getAttribute('aria-label'),
      named && named.split(/\\s+/).map((id) => element.ownerDocument.getElementById(id)?.textContent).join(' '),
      element.labels?.length ? [...element.labels].map((each) => each.innerText).join(' ') : '',
      kind === 'button' && element.tagName === 'INPUT' ? element.value || element.alt || element.type : '',
      ['textbox', 'select', 'slider', 'file', 'checkbox', 'radio'].includes(kind) ? '' : element.innerText,
      element.getAttribute('placeholder'), element.title,
      element.querySelector?.('img[alt]')?.alt, element.querySelector?.('svg title')?.textContent,
      element.getAttribute('name'),
    ];
    return squeeze(texts.find((text) => squeeze(text)) || '');
  }

  function statesOf(element, kind) {
    const states = [];
    if (kind === 'textbox') {
      const value = element.value ?? element.innerText;
      if (element.type === 'password') {
        if (value) states.push(`= (${value.length} characters)`);
      } else if (value) states.push('= ' + quote(value));
      if (element.type && !['text', 'textarea', 'search'].includes(element.type)) states.push(element.type);
    }
    if (kind === 'slider' && 'value' in element) states.push(`= ${element.value} (${element.min || 0} to ${element.max || 100})`);
    if (kind === 'file' && element.files?.length) states.push('= ' + [...element.files].map((file) => quote(file.name)).join(', '));
    if (kind === 'select') {
      const options = [...element.options];
      states.push('= ' + options.filter((each) => each.selected).map((each) => quote(each.label)).join(', '));
      const others = options.slice(0, MAX_OPTIONS).map((each) => quote(each.label)).join(' | ');
      states.push(`of ${others}${options.length > MAX_OPTIONS ? ` and ${options.length - MAX_OPTIONS} more` : ''}`);
    }
    if (element.checked || element.getAttribute('aria-checked') === 'true') states.push('checked');
    if (element.getAttribute('aria-selected') === 'true') states.push('selected');
    if (element.getAttribute('aria-expanded') === 'true') states.push('expanded');
    if (element.disabled || element.getAttribute('aria-disabled') === 'true') states.push('disabled');
    if (element.required) states.push('required');
    if (element.readOnly) states.push('read-only');
    if (element.matches?.(':user-invalid')) states.push('invalid: ' + quote(element.validationMessage));
    return states;
  }

  function read() {
    const lines = [], frames = [];
    let line = '', nodes = 0, chars = 0, isCut = false;
    const flush = () => {
      const text = line.trim();
      line = '';
      if (text && !/^(#+|-|\\|)$/.test(text)) {
        lines.push(text);
        chars += text.length + 1;
      }
    };
    const add = (text) => { line += text; };
    const control = (element, kind, name) => {
      const words = [numberOf(element), kind];
      if (name) words.push(quote(name));
      words.push(...statesOf(element, kind));
      const gap = line && !/\\s$/.test(line) ? ' ' : '';
      add(`${gap}[${words.join(' ')}] `);
    };
    const walkAll = (list, within) => { for (const each of list) walk(each, within); };
    const childrenOf = (element) => {
      if (element.shadowRoot) return element.shadowRoot.childNodes;
      if (element.tagName === 'SLOT') {
        const assigned = element.assignedNodes();
        if (assigned.length) return assigned;
      }
      return element.childNodes;
    };
    function walk(node, within) {
      if (isCut) return;
      if (++nodes > MAX_NODES || chars > MAX_CHARS) { isCut = true; return; }
      if (node.nodeType === 3) {
        if (within.hidden) return;
        if (within.pre) {
          node.data.split('\\n').forEach((text, index) => { if (index) flush(); add(text); });
        } else {
          const text = node.data.replace(/\\s+/g, ' ');
          add(/\\s$/.test(line) || !line ? text.replace(/^ /, '') : text);
        }
        return;
      }
      if (node.nodeType !== 1 || SKIPPED.has(node.tagName)) return;
      const style = node.ownerDocument.defaultView?.getComputedStyle(node);
      if (!style || style.display === 'none') return;
      if (style.display !== 'contents' && !node.checkVisibility()) return;
      const hidden = style.visibility !== 'visible';
      const tag = node.tagName;
      if (tag === 'BR') { flush(); return; }
      const isBlock = !style.display.startsWith('inline') && style.display !== 'contents'
        && style.display !== 'table-cell';
      if (tag === 'IFRAME' || tag === 'FRAME') {
        flush();
        let inner = null;
        try { inner = node.contentDocument; } catch { inner = null; }
        if (inner?.body) {
          lines.push(`(frame ${clip(inner.location.href, 200)})`);
          walk(inner.body, {});
          flush();
          lines.push('(end of frame)');
        } else if (node.src) {
          numberOf(node);
          frames.push({at: lines.length, number: numbers.get(node), src: clip(node.src, 200)});
          lines.push('');
        }
        return;
      }
      if (tag === 'IMG' || tag === 'svg') {
        const alt = tag === 'IMG' ? node.alt : node.getAttribute('aria-label') || node.querySelector('title')?.textContent;
        if (squeeze(alt) && !hidden) add(`(image ${quote(alt)}) `);
        if (tag === 'IMG' && kindOf(node, style)) control(node, 'clickable', '');
        return;
      }
      if (tag === 'CANVAS' || tag === 'VIDEO' || tag === 'AUDIO') {
        if (!hidden) control(node, tag.toLowerCase(), nameOf(node, ''));
        return;
      }
      if (isBlock) flush();
      if (/^H[1-6]$/.test(tag)) add('#'.repeat(+tag[1]) + ' ');
      if (tag === 'LI') add('- ');
      if (style.display === 'table-cell' && node.previousElementSibling) add(' | ');
      const kind = hidden ? '' : kindOf(node, style);
      const rest = {pre: style.whiteSpace.startsWith('pre'), hidden};
      if (kind) {
        const name = nameOf(node, kind);
        const isField = ['textbox', 'select', 'slider', 'file', 'checkbox', 'radio'].includes(kind);
        const isWhole = name.length <= MAX_NAME && kind !== 'clickable' && kind !== 'gridcell'
          && !node.querySelector(CONTROLS);
        control(node, kind, isField || isWhole ? name : '');
        if (isField) flush(); // a line of its own: it changes by itself
        else if (!isWhole) walkAll(childrenOf(node), rest);
      } else if (tag === 'LABEL' && node.control && node.control.checkVisibility?.()) {
        // The control itself is shown with this text.
        if (node.contains(node.control)) walk(node.control, rest);
      } else {
        walkAll(childrenOf(node), rest);
      }
      if (isBlock) flush();
    }
    if (document.body) walk(document.body, {});
    flush();
    if (isCut) lines.push('(The page goes on; the rest is not read.)');
    return {lines, frames, next, ...facts()};
  }

  function facts() {
    const entry = performance.getEntriesByType('navigation')[0];
    return {url: location.href, title: clip(squeeze(document.title), 300), status: entry?.responseStatus || 0,
      hasBody: Boolean(document.body), type: document.contentType, next};
  }

  function describe(element) {
    return `<${element.tagName.toLowerCase()}${element.id ? '#' + clip(element.id, 40) : ''}> ${quote(element.innerText || '')}`;
  }

  function point(number) {
    const element = find(number);
    if (!element) return {stale: true};
    if (element.disabled) return {error: 'is disabled'};
    let target = element;
    const sized = (each) => [...each.getClientRects()].find((rect) => rect.width > 1 && rect.height > 1);
    target.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
    let rect = sized(target);
    if (!rect && element.labels?.length) {
      target = element.labels[0];
      target.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
      rect = sized(target);
    }
    if (!rect) return {error: 'has no size on the page, so it cannot be clicked'};
    const view = target.ownerDocument.defaultView;
    const left = Math.max(rect.left, 0), top = Math.max(rect.top, 0);
    let x = (left + Math.min(rect.right, view.innerWidth)) / 2;
    let y = (top + Math.min(rect.bottom, view.innerHeight)) / 2;
    const hit = target.getRootNode().elementFromPoint(x, y);
    const label = hit?.closest?.('label');
    if (!hit || !(target.contains(hit) || hit.contains(target) || hit.shadowRoot || label?.control === element)) {
      return {error: hit ? `is covered by ${describe(hit)}` : 'is outside of the visible page'};
    }
    return outward(view, x, y);
  }

  function outward(view, x, y) {
    for (let inner = view; inner !== window; inner = inner.parent) {
      const frame = inner.frameElement, outer = frame.getBoundingClientRect();
      x += outer.left + frame.clientLeft;
      y += outer.top + frame.clientTop;
    }
    return {x, y};
  }

  // A point of a frame of another site, as a point of this page. The frame has just scrolled, also this page.
  async function through(number, x, y) {
    const frame = find(number);
    if (!frame) return {stale: true};
    await new Promise((resolve) => { requestAnimationFrame(() => requestAnimationFrame(resolve)); setTimeout(resolve, 100); });
    const outer = frame.getBoundingClientRect();
    x += outer.left + frame.clientLeft;
    y += outer.top + frame.clientTop;
    const hit = frame.getRootNode().elementFromPoint(x, y);
    if (hit !== frame) return {error: hit ? `is covered by ${describe(hit)}` : 'is outside of the visible page'};
    return outward(frame.ownerDocument.defaultView, x, y);
  }

  const SET_KINDS = new Set(['date', 'time', 'datetime-local', 'month', 'week', 'color', 'range']);
  function prepare(number, text) {
    const element = find(number);
    if (!element) return {stale: true};
    if (element.disabled) return {error: 'is disabled'};
    const changed = () => {
      element.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
      element.dispatchEvent(new Event('change', {bubbles: true}));
    };
    if (element.tagName === 'SELECT') {
      const wanted = squeeze(text).toLowerCase();
      const option = [...element.options].find((each) => squeeze(each.label).toLowerCase() === wanted)
        || [...element.options].find((each) => each.value.toLowerCase() === wanted);
      if (!option) return {error: `has no option ${quote(text)}`};
      element.focus();
      option.selected = true;
      changed();
      return {done: true};
    }
    if (element.tagName === 'INPUT') {
      if (element.type === 'file') return {file: true};
      if (['checkbox', 'radio', 'submit', 'button', 'reset', 'image'].includes(element.type)) {
        return {error: `is a ${element.type}: click it`};
      }
      if (SET_KINDS.has(element.type)) {
        element.focus();
        element.value = text;
        if (text && !element.value) return {error: `takes no ${quote(text)}: it is of type ${element.type}`};
        changed();
        return {done: true};
      }
    }
    if (element.readOnly) return {error: 'is read-only'};
    element.scrollIntoView({block: 'center', behavior: 'instant'});
    element.focus();
    if (typeof element.select === 'function') element.select();
    else if (element.isContentEditable) element.ownerDocument.getSelection().selectAllChildren(element);
    else return {error: 'takes no text'};
    if (!text) element.ownerDocument.execCommand('delete');
    return text ? {insert: true} : {done: true};
  }

  function has(text, selector) {
    const documents = [document];
    for (const frame of document.querySelectorAll('iframe')) {
      try { if (frame.contentDocument) documents.push(frame.contentDocument); } catch { /* of another site */ }
    }
    return documents.some((each) => {
      if (text && !squeeze(each.body?.innerText).toLowerCase().includes(squeeze(text).toLowerCase())) return false;
      return !selector || [...each.querySelectorAll(selector)].some((found) => found.checkVisibility());
    });
  }

  function quiet() {
    return new Promise((resolve) => {
      let timer = 0;
      const end = () => { observer.disconnect(); resolve(true); };
      const observer = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(end, QUIET); });
      observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
      timer = setTimeout(end, QUIET);
      setTimeout(end, MAX_QUIET);
    });
  }

  globalThis.chatdPage = {read, facts, find, point, through, prepare, has, quiet};
}
""".replace("MAX_NODES", str(MAX_PAGE_NODES))
    .replace("MAX_CHARS", str(MAX_PAGE_CHARS))
    .replace("MAX_NAME", str(MAX_NAME_CHARS))
    .replace("MAX_OPTIONS", str(MAX_SHOWN_OPTIONS))
    .replace("MAX_QUIET", str(MAX_QUIET_MS))
    .replace("QUIET", str(QUIET_MS))
)
