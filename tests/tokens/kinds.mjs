// Texts of each kind for the bound on estimates. They are the same in every run.

// A linear congruential generator (Knuth, MMIX): good enough to mix texts, and the same on every machine.
export function numbers(seed) {
  let state = BigInt(seed);
  return (below) => {
    state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
    return Number((state >> 33n) % BigInt(below));
  };
}

const PROSE = {
  english: `All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood. Everyone is entitled to all the rights and freedoms set forth in this Declaration, without distinction of any kind, such as race, colour, sex, language, religion, political or other opinion, national or social origin, property, birth or other status.`,
  german: `Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt und sollen einander im Geiste der Brüderlichkeit begegnen. Jeder hat Anspruch auf alle in dieser Erklärung verkündeten Rechte und Freiheiten, ohne irgendeinen Unterschied, etwa nach Rasse, Hautfarbe, Geschlecht, Sprache, Religion oder politischer Überzeugung.`,
  french: `Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de conscience et doivent agir les uns envers les autres dans un esprit de fraternité. Chacun peut se prévaloir de tous les droits et de toutes les libertés proclamés dans la présente Déclaration, sans distinction aucune.`,
  vietnamese: `Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. Mọi con người đều được tạo hóa ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình bằng hữu. Ai cũng được hưởng những quyền tự do ghi trong bản Tuyên ngôn này không phân biệt đối xử.`,
  polish: `Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa. Każdy człowiek posiada wszystkie prawa i wolności zawarte w niniejszej Deklaracji bez względu na jakiekolwiek różnice.`,
  turkish: `Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler. Herkes, ırk, renk, cinsiyet, dil, din, siyasi veya diğer herhangi bir akide farkı gözetilmeksizin bütün haklardan istifade edebilir.`,
  cyrillic: `Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и должны поступать в отношении друг друга в духе братства. Каждый человек должен обладать всеми правами и всеми свободами, провозглашенными настоящей Декларацией, без какого бы то ни было различия.`,
  greek: `Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης. Κάθε άνθρωπος δικαιούται να επικαλείται όλα τα δικαιώματα και όλες τις ελευθερίες.`,
  arabic: `يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميراً وعليهم أن يعامل بعضهم بعضاً بروح الإخاء. لكل إنسان حق التمتع بكافة الحقوق والحريات الواردة في هذا الإعلان، دون أي تمييز، كالتمييز بسبب العنصر أو اللون أو الجنس أو اللغة أو الدين.`,
  hebrew: `כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון, לפיכך חובה עליהם לנהוג איש ברעהו ברוח של אחווה. כל אדם זכאי לזכויות ולחרויות שנקבעו בהכרזה זו ללא הפליה כלשהי מטעמי גזע, צבע, מין, לשון, דת, דעה פוליטית או דעה בבעיות אחרות.`,
  hindi: `सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए। सभी को इस घोषणा में सन्निहित सभी अधिकारों और आज़ादियों को प्राप्त करने का हक़ है।`,
  thai: `มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ ทุกคนย่อมมีสิทธิและอิสรภาพทั้งปวงตามที่กำหนดไว้ในปฏิญญานี้ โดยปราศจากการแบ่งแยกไม่ว่าชนิดใด`,
  chinese: `人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。人人有资格享受本宣言所载的一切权利和自由，不分种族、肤色、性别、语言、宗教、政治或其他见解、国籍或社会出身、财产、出生或其他身分等任何区别。`,
  traditional: `人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。人人有資格享受本宣言所載的一切權利和自由，不分種族、膚色、性別、語言、宗教、政治或其他見解、國籍或社會出身、財產、出生或其他身分等任何區別。`,
  japanese: `すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。すべて人は、人種、皮膚の色、性、言語、宗教、政治上その他の意見による差別をも受けることなく、権利と自由とを享有することができる。`,
  korean: `모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다. 모든 사람은 인종, 피부색, 성, 언어, 종교, 정치적 또는 기타의 견해에 따른 어떠한 종류의 차별이 없이 권리와 자유를 향유할 자격이 있다.`,
  amharic: `የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። የተፈጥሮ ማስተዋልና ሕሊና ስላለው አንዱ ሌላውን በወንድማማችነት መንፈስ መመልከት ይገባዋል።`,
  georgian: `ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით. მათ მინიჭებული აქვთ გონება და სინდისი და ერთმანეთის მიმართ უნდა იქცეოდნენ ძმობის სულისკვეთებით.`,
  tibetan: `འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌། ཐོབ་ཐངགི་རང་དབང་འདྲ་མཉམ་དུ་ཡོད་ལ།`,
};

const CODE = {
  rust: `impl<T: Ord + Copy> Heap<T> {\n    pub fn push(&mut self, value: T) {\n        self.items.push(value);\n        let mut at = self.items.len() - 1;\n        while at > 0 && self.items[at] < self.items[(at - 1) / 2] {\n            self.items.swap(at, (at - 1) / 2);\n            at = (at - 1) / 2;\n        }\n    }\n}\n`,
  python: `def rotate(matrix: list[list[int]]) -> list[list[int]]:\n    """Turns a matrix by ninety degrees."""\n    if not matrix or any(len(row) != len(matrix[0]) for row in matrix):\n        raise ValueError("expected a rectangular matrix")\n    return [list(row) for row in zip(*matrix[::-1])]\n\n\nif __name__ == "__main__":\n    print(rotate([[1, 2], [3, 4]]))\n`,
  typescript: `export async function fetchAll<T>(urls: readonly string[], limit = 4): Promise<T[]> {\n  const results: T[] = new Array(urls.length);\n  let next = 0;\n  const worker = async () => {\n    for (let i = next++; i < urls.length; i = next++) {\n      const response = await fetch(urls[i], { headers: { accept: 'application/json' } });\n      results[i] = (await response.json()) as T;\n    }\n  };\n  await Promise.all(Array.from({ length: limit }, worker));\n  return results;\n}\n`,
  c: `static int read_all(int fd, char *buf, size_t len)\n{\n\twhile (len > 0) {\n\t\tssize_t got = read(fd, buf, len);\n\t\tif (got < 0 && errno == EINTR)\n\t\t\tcontinue;\n\t\tif (got <= 0)\n\t\t\treturn -1;\n\t\tbuf += got;\n\t\tlen -= (size_t)got;\n\t}\n\treturn 0;\n}\n`,
  sql: `SELECT c.id, c.name, COUNT(o.id) AS orders, SUM(o.total_cents) / 100.0 AS total\nFROM customers c\nLEFT JOIN orders o ON o.customer_id = c.id AND o.placed_at >= DATE '2026-01-01'\nWHERE c.country IN ('DE', 'AT', 'CH') AND c.deleted_at IS NULL\nGROUP BY c.id, c.name\nHAVING COUNT(o.id) > 3\nORDER BY total DESC NULLS LAST\nLIMIT 50;\n`,
};

const PLAIN = {
  minified: `!function(e,t){"object"==typeof exports&&"undefined"!=typeof module?module.exports=t():e.Q=t()}(this,function(){"use strict";var e=[],t=0;function n(n,r){for(var i=0;i<n.length;i++)r(n[i],i)&&(e[t++]=n[i]);return e.slice(0,t)}return{f:n,m:function(e,t){return n(e,function(e){return!!t[e]})}}});`,
  json: `{"id":"inv_2041","created":"2026-11-02T09:14:33Z","customer":{"id":10482,"name":"Brandt & Söhne","vat":"DE811234567"},"lines":[{"sku":"A-113","quantity":12,"unit_price":4.75,"tags":["paper","a4"]},{"sku":"B-990","quantity":1,"unit_price":219.0,"tags":[]}],"paid":false,"notes":null}`,
  xml: `<?xml version="1.0" encoding="UTF-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">\n  <title>Herons &amp; egrets</title>\n  <entry id="e1">\n    <updated>2026-03-01T12:00:00Z</updated>\n    <link href="https://example.org/e/1" rel="alternate"/>\n    <summary type="text">A grey heron was seen at the weir.</summary>\n  </entry>\n</feed>\n`,
  markdown: `# Install\n\n1. Download the archive from the [releases page](https://example.org/releases).\n2. Unpack it: \`tar xf tool-1.4.2.tar.gz\`.\n\n> **Note**: versions before *1.3* need a migration.\n\n| option | default | meaning |\n|---|---|---|\n| \`--jobs\` | 4 | how many run at once |\n| \`--quiet\` | off | prints errors only |\n\n---\n\n- [x] done\n- [ ] open\n`,
  dates: `2026-11-25T01:50:54Z, 25.11.2026 01:50, 11/25/26 1:50 AM, Wed, 25 Nov 2026 01:50:54 GMT; 2025-02-28T23:59:59.999+01:00; 19991231; 00:00:01,`,
  urls: `https://api.example.com/v1/users/8471/orders?status=open&limit=100&cursor=eyJpZCI6MTIzfQ%3D%3D#top http://localhost:8080/healthz?verbose=1 ftp://mirror.example.net/pub/linux/ mailto:someone@example.org `,
  paths: `/usr/local/lib/python3.12/site-packages/urllib3/util/retry.py /var/log/nginx/access.log.2.gz C:\\Users\\ada\\AppData\\Local\\Temp\\~DF3A.tmp ./src/../tests/fixtures/*.json `,
  mathematics: `∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−f(a)|<ε; ∑_{k=1}^{n} k² = n(n+1)(2n+1)/6, ∫₀^∞ e^{−x²} dx = √π/2, A∪B⊆C ⇔ (A⊆C ∧ B⊆C), ‖x+y‖ ≤ ‖x‖+‖y‖, ∂u/∂t = α∇²u; `,
  latex: `\\begin{align}\n\\int_{0}^{\\infty} e^{-x^{2}}\\,dx &= \\frac{\\sqrt{\\pi}}{2} \\\\\n\\sum_{n=1}^{\\infty} \\frac{1}{n^{2}} &= \\frac{\\pi^{2}}{6}\n\\end{align}\n`,
  emoji: `😀😃😄😁😆🥹😅😂🤣🥲☺️😊😇🙂🙃😉😌😍🥰😘😗😙😚😋😛😝😜🤪🤨🧐🤓😎🥸🤩🥳`,
  flags: `🇩🇪🇫🇷🇯🇵🇧🇷🇮🇳🇰🇪🇨🇦🇺🇦🇳🇿🇲🇽🇸🇪🇵🇹`,
  sequences: `👩🏽‍💻👨‍👩‍👧‍👦🏳️‍🌈🧑🏿‍🚀👩‍❤️‍💋‍👨1️⃣#️⃣🤦🏼‍♂️🐻‍❄️`,
  dingbats: `✂✈✉✌✍✏✒✔✖✝✡✨✳✴❄❇❌❎❓❗❣➕➖➡➰⤴⤵⬅⬛⬜⭐⭕〰〽㊗㊙`,
  words: `heron `,
  lines: `The same line again.\n`,
  letters: `a`,
  'repeated capitals': `A`,
  'repeated mark': `-`,
  'mixed scripts': `Server läuft: Сервер работает, サーバー稼働中, الخادم يعمل, 서버 작동 중 (OK=200) ✓ `,
};

const MADE = {
  digits: '0123456789', 'hex digits': '0123456789abcdef', base64: 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/',
  punctuation: '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~', 'random letters': 'abcdefghijklmnopqrstuvwxyz',
  'random capitals': 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'random case': 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz',
  'random ascii': Array.from({ length: 95 }, (_, at) => String.fromCharCode(32 + at)).join(''),
  'random blanks': ' \t\n\r', 'random controls': Array.from({ length: 32 }, (_, at) => String.fromCharCode(at)).join('') + '\x7f',
  'random accents': 'àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿ', 'one and zero': '01',
};

// Unicode blocks with few frequent characters.
const RANGES = { ideographs: [0x4e00, 0x9fff], 'rare ideographs': [0x20000, 0x2a6df], syllables: [0xac00, 0xd7a3],
  pictures: [0x1f300, 0x1f64f], 'private use': [0xe000, 0xf8ff], phonetic: [0x250, 0x2af], cuneiform: [0x12000, 0x12399],
  arrows: [0x2190, 0x21ff], 'letters of mathematics': [0x1d400, 0x1d454] };

const REPEATED = { brackets: '[]', braces: '{}', parentheses: '()', 'nested brackets': '[{()}]', backslashes: '\\', quotes: '"',
  'backslash and u': '\\u', 'backslash and word': 'word \\u', blanks: ' ', tabs: '\t', 'line feeds': '\n', 'carriage returns': '\r\n',
  'no-break blanks': '\u00a0', 'wide blanks': '\u3000', 'zero-width': '\u200b', 'joined marks': 'e\u0301', dots: '. ', 'blank and letter': ' a',
  'camel case': 'aB', 'tab and letter': '\tx', 'character face': '\uface' };

// Each kind as [name, text]; all are long enough for a stable count.
export function kinds(length = 1200) {
  const found = [];
  const repeat = (text) => [...text.repeat(Math.ceil(length / text.length))].slice(0, length).join('');
  for (const table of [PROSE, CODE, PLAIN]) {
    for (const [name, text] of Object.entries(table)) found.push([name, repeat(text)]);
  }
  for (const [name, text] of Object.entries(REPEATED)) found.push([`repeated ${name}`, repeat(text)]);
  let seed = 1;
  for (const [name, letters] of Object.entries(MADE)) {
    const below = numbers(seed++);
    found.push([name, Array.from({ length }, () => letters[below(letters.length)]).join('')]);
  }
  for (const [name, [from, to]] of Object.entries(RANGES)) {
    const below = numbers(seed++);
    found.push([name, Array.from({ length: length / 2 }, () => String.fromCodePoint(from + below(to - from + 1))).join('')]);
  }
  return found;
}
