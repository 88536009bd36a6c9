export default core=>{
var o=core[11],n=core[53];var m=r=>r.slice(o.length).replace(/~([\da-f]{1,5}|10[\da-f]{4})~/g,(t,e)=>String.fromCodePoint(Number.parseInt(e,16)));async function c(r,{prefix:t="",...e}){let{topics:p,pagination:i}=await r.topics({...e,prefix:t?n(o,t):o});return{rooms:p.map(({topic:s,count:a})=>({name:m(s),members:a})),pagination:i}}return({roomOf:m,rooms:c});
}
//# sourceMappingURL=rooms.js.map
